"""A second host with three links to the service: it trains, it is cut off, it is slow, it is late.

Whatever happens: one machine at a time has effect, no event is lost or told twice, and the losses
are those of a run that nobody disturbed.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from polar.stack.home import Home
from polar.stack.state import running_state
from tests.drills.clock import can_shift
from tests.e2e.harness import World
from tests.hosts.conftest import HOST_SETTINGS
from tests.hosts.site import Links, SecondHost, joined, linked
from tests.services import wait_until

pytestmark = [pytest.mark.train, pytest.mark.drill]

STEPS = 80
LEASE = float(HOST_SETTINGS["POLAR_LEASE"])


def submit(service: World) -> str:
    """Submit a job that is random wherever it can be, with a checkpoint every fifth step."""
    spec = service.spec(steps=STEPS, task={"packing": True}, checkpoint={"save_steps": 5})
    spec["adapter"] = {"type": "lora", "r": 4, "lora_alpha": 8, "lora_dropout": 0.2}
    return str(service.client.submit(spec)["id"])


@pytest.fixture(scope="module")
def undisturbed(service: World) -> dict[int, float]:
    """The losses of the same job on the service's own host."""
    job_id = submit(service)
    service.until(job_id, "succeeded")
    losses = service.losses(job_id)
    assert sorted(losses) == list(range(1, STEPS + 1))
    return losses


def on_second(service: World, first: str, second: SecondHost) -> str:
    """Submit a job while the first host gets none; returns it once it trains and is stored."""
    service.client.drain(first)
    job_id = submit(service)
    service.until(job_id, "training")
    assert [a["worker_id"] for a in attempts(service, job_id)] == [second.id]
    wait_until(lambda: stored(service, job_id), timeout=60)
    service.client.undrain(first)
    return job_id


def attempts(service: World, job_id: str) -> list[dict[str, Any]]:
    names = ("id", "number", "worker_id", "outcome", "reason", "resumed_step", "last_n")
    rows = service.sql(
        "SELECT id, number, worker_id, outcome, reason, resumed_step, last_n FROM attempts"
        " WHERE job_id = %s ORDER BY number",
        job_id,
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def stored(service: World, job_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT attempt_id, step FROM checkpoints WHERE job_id = %s ORDER BY created_at"
    return service.sql(query, job_id)


def nothing_is_lost_or_doubled(service: World, job_id: str, losses: dict[int, float]) -> None:
    """The job's own numbers have no gap, and each attempt's were taken once and in order."""
    rows = service.sql(
        "SELECT seq, attempt_id, n FROM job_events WHERE job_id = %s ORDER BY seq", job_id
    )
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    holders = [row[1] for row in rows if row[1] is not None]
    # One after the other: nothing of an attempt comes after the next has said something.
    assert list(dict.fromkeys(holders)) == [a["id"] for a in attempts(service, job_id)]
    assert len(list(groupby(holders))) == len(set(holders))
    for attempt in attempts(service, job_id):
        numbers = [row[2] for row in rows if row[1] == attempt["id"] and row[2] is not None]
        assert numbers == sorted(set(numbers))
    assert service.losses(job_id) == losses


def test_it_trains_with_the_links_that_it_has_and_no_others(
    service: World, links: Links, first: str, second: SecondHost, undisturbed: dict[int, float]
) -> None:
    job_id = on_second(service, first, second)
    service.until(job_id, "succeeded")
    nothing_is_lost_or_doubled(service, job_id, undisturbed)
    assert len(attempts(service, job_id)) == 1
    port = service.state.url.rpartition(":")[2]
    probe = (
        "import socket, sys\n"
        "def reaches(host, port):\n"
        "    try: socket.create_connection((host, port), 3).close()\n"
        "    except OSError: return False\n"
        "    return True\n"
        f"print([reaches('127.0.0.1', p) for p in {[*links.doors]}],"
        f" [reaches('127.0.0.1', {port}), reaches('192.0.2.1', 80)])"
    )
    if links.network is not None:  # else this machine allows no network of its own
        done = subprocess.run(
            links.command(sys.executable, "-c", probe), capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "[True, True, True] [False, False]", done.stderr


@pytest.mark.parametrize("how", ["cut", "half_open"])
def test_a_short_cut_is_bridged(
    service: World,
    links: Links,
    first: str,
    second: SecondHost,
    undisturbed: dict[int, float],
    how: Any,
) -> None:
    """Shorter than a lease: the trainer trains on, and its facts come when the link is back."""
    job_id = on_second(service, first, second)
    with links.broken(how):
        time.sleep(LEASE / 2)
    service.until(job_id, "succeeded")
    nothing_is_lost_or_doubled(service, job_id, undisturbed)
    assert len(attempts(service, job_id)) == 1


def test_a_slow_link_makes_it_slow_and_nothing_else(
    service: World, links: Links, first: str, second: SecondHost, undisturbed: dict[int, float]
) -> None:
    job_id = on_second(service, first, second)
    with links.broken("slow"):
        service.until(job_id, "succeeded", timeout=150)
    nothing_is_lost_or_doubled(service, job_id, undisturbed)
    assert len(attempts(service, job_id)) == 1


@pytest.mark.parametrize("how", ["cut", "half_open"])
def test_b38_a_host_that_comes_back_after_its_lease_is_fenced(
    service: World,
    links: Links,
    first: str,
    second: SecondHost,
    undisturbed: dict[int, float],
    how: Any,
) -> None:
    job_id = on_second(service, first, second)
    frozen = second.trainers()
    for process in frozen:  # it would be done before the lease has run out
        process.suspend()
    with links.broken(how):
        wait_until(lambda: len(attempts(service, job_id)) == 2, timeout=60)
        lost, new = attempts(service, job_id)
        assert (lost["outcome"], lost["reason"]) == ("lost", "machine_lost")
        assert new["worker_id"] == first
        before = [row for row in stored(service, job_id) if row[0] == lost["id"]]
        for process in frozen:
            process.resume()  # it trains on in the dark, writes events and checkpoints
        time.sleep(2.0)
        assert second.trainers()
    back = time.monotonic()
    wait_until(lambda: not second.trainers(), timeout=30)
    service.until(job_id, "succeeded", timeout=120)
    # At once: it asks every `poll` seconds; what is more is the machine's.
    assert time.monotonic() - back < 60
    nothing_is_lost_or_doubled(service, job_id, undisturbed)
    lost_now, _ = attempts(service, job_id)
    assert lost_now == lost  # nothing of it was accepted after the takeover
    assert [row for row in stored(service, job_id) if row[0] == lost["id"]] == before
    owners = service.sql("SELECT DISTINCT attempt_id FROM artifacts WHERE job_id = %s", job_id)
    assert owners == [(new["id"],)]
    state = running_state(second.home)
    assert state is not None
    assert {each.condition for each in state.processes.values()} == {"ready"}
    wait_until(lambda: online(service, second.id), timeout=30)


def online(service: World, host: str) -> bool:
    query = "SELECT seen_at > now() - interval '4 seconds' FROM workers WHERE id = %s"
    return service.sql(query, host) == [(True,)]


@pytest.mark.skipif(not can_shift(), reason="the wrong clock is made of this machine's code")
@pytest.mark.parametrize("hours", [-1, 1])
def test_b35_a_host_whose_clock_is_an_hour_wrong(
    service: World, undisturbed: dict[int, float], hours: int
) -> None:
    """Only the database's clock decides about leases, whatever the host believes."""
    with tempfile.TemporaryDirectory(prefix="h") as folder, ExitStack() as held:
        links = held.enter_context(linked(service, Path(folder)))
        home = Home(Path(folder) / "home")
        late = held.enter_context(joined(service, links, home, HOST_SETTINGS, 3600 * hours))
        service.sql("UPDATE workers SET draining = id <> %s WHERE kind = 'host'", late.id)
        job_id = submit(service)
        service.until(job_id, "training", timeout=120)
        events = next((home.path / "attempts").glob("*/events.jsonl"))
        said = json.loads(events.read_text(encoding="utf-8").splitlines()[0])["time"]
        off = datetime.fromisoformat(said) - datetime.now(UTC)
        assert abs(off - timedelta(hours=hours)) < timedelta(minutes=5)  # its trainer believes it
        service.until(job_id, "succeeded", timeout=150)
        assert [a["worker_id"] for a in attempts(service, job_id)] == [late.id]
        nothing_is_lost_or_doubled(service, job_id, undisturbed)
