"""Kill, freeze, cut, slow and fill everything: no job is lost, doubled or changed by it."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.drills import cells, document
from tests.drills.checks import check_job, check_rest
from tests.drills.clock import can_shift
from tests.drills.conftest import Range, Record, drill_range, new_wave
from tests.drills.faults import LONGEST_LEAD, strike
from tests.drills.stack import DrillWorld, Options, can_mount
from tests.drills.wave import PATIENCE
from tests.services import wait_until

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]
HOUR = 3600.0
# Enough for what lies there in peace: write-ahead logs and volumes are laid out in advance.
SMALL = {"postgres": 400 * 2**20, "valkey": 16 * 2**20, "s3": 256 * 2**20, "attempts": 48 * 2**20}


def marked(waves: list[cells.Wave]) -> list[object]:
    """Parameters, of which `make test` runs a seeded sixteenth."""
    chosen = [] if cells.everything() else cells.sixteenth()
    return [
        pytest.param(wave, id=wave.id, marks=[] if wave in chosen else pytest.mark.drill)
        for wave in waves
    ]


def always(test: Callable[..., None]) -> Callable[..., None]:
    """Have a test run in `make test` and in `make drill`."""
    return pytest.mark.drill(test) if cells.everything() else test


def run_wave(ground: Range, kind: cells.Wave, record: Record) -> None:
    """Seven jobs in seven moments, one fault, and what must hold afterwards."""
    began = time.monotonic()
    wave = new_wave(ground.world)
    try:
        wave.gather()
        gathered = time.monotonic()
        with wave.going_on():
            strike(ground.world, kind, wave, random.Random(f"{cells.seed()} {kind.id}"))  # noqa: S311
        wave.await_ends()
    except BaseException:
        wave.give_up()
        raise
    finally:
        wave.held.release()
    outcomes = {}
    for moment, case in wave.cases.items():
        own = moment == "prepare"
        outcome = check_job(ground.world, case, ground.losses[own])
        outcomes[kind.component, kind.fault, moment] = outcome
        tell(
            f"  {kind.id:24} {moment:10} {outcome.status:10} {outcome.seconds:5.1f} s "
            f"{', '.join(outcome.attempts)}"
        )
    check_rest(ground.world)
    record.outcomes |= outcomes
    took = time.monotonic() - began
    tell(f"{kind.id}: {gathered - began:.1f} s to gather, {took:.1f} s in all")


def tell(line: str) -> None:
    """Show how far it has come."""
    sys.stderr.write(f"{line}\n")


@pytest.mark.parametrize("kind", marked(cells.COMMON_WAVES))
def test_b_fault(common: Range, record: Record, kind: cells.Wave):
    run_wave(common, kind, record)


@always
def test_b30_mlflow_has_every_job_as_it_ended(common: Range):
    """Whatever broke meanwhile: each run is closed once, with the job's own end and losses."""
    world = common.world
    wait_until(lambda: not _open_runs(world), timeout=240, every=0.5)
    ends = world.sql(
        "SELECT j.status, m.closed_status, count(*) FROM mlflow_runs m JOIN jobs j"
        " ON j.id = m.job_id GROUP BY 1, 2"
    )
    assert {(status, closed) for status, closed, _ in ends} <= {
        ("succeeded", "FINISHED"),
        ("cancelled", "KILLED"),
    }
    runs = world.sql(
        "SELECT m.run_id FROM mlflow_runs m JOIN jobs j ON j.id = m.job_id"
        " WHERE j.status = 'succeeded' AND j.spec -> 'data' -> 'train' -> 0 ->> 'path' LIKE %s",
        "%rows.jsonl",
    )
    for (run_id,) in runs:
        assert _mlflow_losses(world, run_id) == common.losses[False]


def _open_runs(world: DrillWorld) -> list[tuple[object, ...]]:
    return world.sql("SELECT job_id FROM mlflow_runs WHERE closed_status IS NULL")


def _mlflow_losses(world: DrillWorld, run_id: str) -> dict[int, float]:
    answer = httpx.get(
        f"{world.state.processes['mlflow'].address}/api/2.0/mlflow/metrics/get-history",
        params={"run_id": run_id, "metric_key": "loss"},
        trust_env=False,
    )
    points = answer.raise_for_status().json()["metrics"]
    return {point["step"]: point["value"] for point in points}


@pytest.fixture(scope="module")
def small_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """A stack whose services and attempts lie on file systems of some megabytes."""
    if not can_mount():
        pytest.skip("this user may not mount: neither root nor user namespaces")
    with drill_range(tmp_path_factory.mktemp("disks"), Options(small=SMALL)) as found:
        yield found


@pytest.mark.parametrize("kind", marked(cells.DISK_WAVES))
def test_b_full_disk(small_disks: Range, record: Record, kind: cells.Wave):
    run_wave(small_disks, kind, record)


@pytest.mark.skipif(not can_shift(), reason="the date is shifted in the code of x86-64's libc")
@pytest.mark.parametrize("kind", marked(cells.CLOCK_WAVES))
def test_b35_clocks_an_hour_apart(
    tmp_path_factory: pytest.TempPathFactory, record: Record, kind: cells.Wave
):
    """Everything of the host lives in another hour: its worker, supervisors and trainers."""
    seconds = {"clock_ahead": HOUR, "clock_behind": -HOUR}[kind.fault]
    options = Options(clocks=dict.fromkeys(("warm", "worker", "prepare"), seconds))
    with drill_range(tmp_path_factory.mktemp(kind.fault), options) as ground:
        run_wave(ground, kind, record)


@pytest.mark.drill
def test_the_document_is_written(record: Record):
    """When every cell held, and only then, the document says so."""
    missing = [cell for cell in cells.cells() if cell not in record.outcomes]
    assert not missing, f"without an outcome: {missing}"
    if os.environ.get("POLAR_WRITE_DOCS") == "1":
        document.write(document.render(record.outcomes, PATIENCE, LONGEST_LEAD))
