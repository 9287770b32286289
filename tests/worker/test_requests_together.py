"""Requests that meet: repeated, together, and from two clients at the same moment.

`POLAR_WRITE_DOCS=1 pytest tests/worker/test_requests_together.py` writes the document's table.
"""

import os
import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests.worker.test_lifecycle_table import DOCUMENT, STATES, TERMINAL, World, filled
from tests.worker.test_lifecycle_table import world as world
from tests.worker.world import one, rows

OPEN = {
    name: reach
    for name, reach in STATES.items()
    if name.split(",")[0] not in TERMINAL and "asked for" not in name
}
COMBINATIONS = (
    ("pause", "pause"),
    ("pause", "resume"),
    ("pause", "resume", "pause"),
    ("pause", "cancel"),
    ("cancel", "pause"),
    ("cancel", "resume"),
    ("cancel", "cancel"),
    ("resume", "resume"),
)
PAIRS = (("pause", "cancel"), ("pause", "resume"), ("resume", "cancel"))
_WISHES = {"pause_requested", "cancel_requested"}
_cells: dict[tuple[str, tuple[str, ...]], str] = {}


def settle(world: World, job: str) -> str:
    """Let everything happen that is going to happen; returns the status then."""
    quiet, before = 0, world.state(job)
    for _ in range(60):
        world.step()
        quiet = quiet + 1 if world.state(job) == before else 0
        before = world.state(job)
        if quiet == 4:
            break
    return before[0]


def check(job: str) -> None:
    """What holds whatever was asked, and in whichever order."""
    told = [data["status"] for data in _statuses(job) if not _WISHES & set(data)]
    counts = Counter(told)
    assert counts["cancelled"] <= 1
    assert counts["failed"] <= 1
    attempts = rows(
        "SELECT outcome, reason, finished_at IS NULL, released_at IS NULL FROM attempts"
        " WHERE job_id = :id ORDER BY number",
        id=job,
    )
    assert sum(open_ for _, _, open_, _ in attempts) <= 1
    if told[-1] in ("paused", *TERMINAL):
        assert not any(unreleased for _, _, _, unreleased in attempts), "its machine is free"
        assert not any(open_ for _, _, open_, _ in attempts)
    for earlier, later in pairwise(told):
        assert (earlier, later) != ("paused", "paused"), "a pause happens once"
        assert earlier not in TERMINAL, "nothing follows an end"


def _statuses(job: str) -> list[dict[str, Any]]:
    query = "SELECT data FROM job_events WHERE job_id = :id AND type = 'status' ORDER BY seq"
    return [data for (data,) in rows(query, id=job)]


@pytest.mark.parametrize("state", OPEN)
def test_requests_that_come_together(world: World, state: str):
    for wishes in COMBINATIONS:
        job = OPEN[state](world)
        codes = [world.api.post(f"/jobs/{job}/{wish}").status_code for wish in wishes]
        after = settle(world, job)
        check(job)
        _cells[state, wishes] = f"{' '.join(map(str, codes))} → {after}"


def test_the_document_says_what_happens():
    if len(_cells) < len(OPEN) * len(COMBINATIONS):
        pytest.skip("needs every cell: run the whole file")
    head = " | ".join(", ".join(wishes) for wishes in COMBINATIONS)
    lines = [f"| state | {head} |", "|---" * (len(COMBINATIONS) + 1) + "|"]
    for state in OPEN:
        lines.append(f"| {state} | {' | '.join(_cells[state, w] for w in COMBINATIONS)} |")
    expected = filled(DOCUMENT.read_text(encoding="utf-8"), "together", "\n".join(lines))
    if os.environ.get("POLAR_WRITE_DOCS"):
        DOCUMENT.write_text(expected, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == expected, "see this file's first lines"


def at_once(world: World, job: str, wishes: tuple[str, ...]) -> list[int]:
    """Send the wishes from a client each, at the same moment; returns the answers' codes."""
    barrier = threading.Barrier(len(wishes))
    codes = [0] * len(wishes)

    def send(place: int, wish: str) -> None:
        barrier.wait(10)
        codes[place] = world.api.post(f"/jobs/{job}/{wish}").status_code

    clients = [threading.Thread(target=send, args=pair) for pair in enumerate(wishes)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(30)
    return codes


@pytest.mark.parametrize("state", OPEN)
def test_b13_two_clients_at_once(world: World, state: str):
    """The outcome is that of one order or of the other, and nothing happens twice."""
    for pair in PAIRS:
        possible = set()
        for wishes in (pair, pair[::-1]):
            job = OPEN[state](world)
            codes = tuple(world.api.post(f"/jobs/{job}/{wish}").status_code for wish in wishes)
            codes = codes if wishes == pair else codes[::-1]
            possible.add((codes, settle(world, job)))
        job = OPEN[state](world)
        codes = tuple(at_once(world, job, pair))
        assert (codes, settle(world, job)) in possible, pair
        check(job)


@pytest.mark.parametrize("wish", ["pause", "resume", "cancel"])
def test_b13_the_same_wish_from_many_clients_is_met_once(world: World, wish: str):
    reach = OPEN["paused while it trained" if wish == "resume" else "running, training"]
    job = reach(world)
    before = len(_statuses(job))
    assert at_once(world, job, (wish,) * 6) == [202] * 6
    asked = len(_statuses(job)) - before
    assert asked == 1, "the wish is written down once"
    after = settle(world, job)
    assert after == {"pause": "paused", "cancel": "cancelled", "resume": "running"}[wish]
    check(job)


def test_a_pause_and_a_cancel_while_the_holder_ends(world: World):
    """Requests race with the stepper itself; whatever wins, one state is reached once."""
    for _ in range(4):
        job = OPEN["running, training"](world)
        holder = threading.Thread(target=lambda: [world.step() for _ in range(4)])
        holder.start()
        codes = at_once(world, job, ("pause", "cancel", "resume"))
        holder.join(30)
        assert settle(world, job) == "cancelled"
        assert codes[1] == 202
        check(job)


@pytest.mark.parametrize(("wish", "after"), [("pause", "paused"), ("cancel", "cancelled")])
def test_b13_a_wish_outlives_the_reconciler_that_was_to_meet_it(
    world: World, wish: str, after: str
):
    """It is written down: the next reconciler finds it, whether the machine still lives or not."""
    job = OPEN["running, training"](world)
    assert world.api.post(f"/jobs/{job}/{wish}").status_code == 202
    world.__post_init__()  # another reconciler, whose target knows nothing of the run
    assert settle(world, job) == after
    check(job)


def test_b13_many_cancels_are_written_down_at_once(world: World):
    jobs = [world.submit() for _ in range(30)]
    clients = [
        threading.Thread(target=world.api.post, args=[f"/jobs/{job}/cancel"]) for job in jobs
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    # Nothing was started for them yet, so no reconciler is needed to end them.
    assert rows("SELECT status, count(*) FROM jobs GROUP BY status") == [("cancelled", 30)]


def test_b14_the_machine_of_a_paused_job_is_given_back_and_its_attempt_is_no_failure(world: World):
    job = OPEN["paused while it trained"](world)
    assert rows("SELECT outcome, reason, message FROM attempts WHERE job_id = :id", id=job) == [
        ("interrupted", None, "paused on request")
    ]
    assert one("SELECT count(*) FROM attempts WHERE released_at IS NULL") == 0
    shown = world.api.get(f"/jobs/{job}").json()
    assert shown["status"] == "paused"
    assert shown["pause_requested_at"]
    assert shown["queue_position"] is None
    assert "resume" in shown["links"]
    resumed = world.api.post(f"/jobs/{job}/resume").json()
    assert (resumed["status"], resumed["pause_requested_at"]) == ("queued", None)
