"""One stack for all waves that can share it, and the record of how the cells ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.drills.cells import Moment
from tests.drills.checks import Outcome
from tests.drills.stack import DrillWorld, Options, drill_stack
from tests.drills.wave import STEPS, Wave
from tests.e2e.conftest import write_rows
from tests.trainer_core.tiny import make_tiny_model


@dataclass
class Range:
    """A stack with the undisturbed runs' losses: `losses[True]` for data of a job's own."""

    world: DrillWorld
    losses: dict[bool, dict[int, float]]


@dataclass
class Record:
    """How the cells ended in this run."""

    outcomes: dict[tuple[str, str, Moment], Outcome] = field(default_factory=dict)


_COUNT = iter(range(1, 1_000))


def new_wave(world: DrillWorld) -> Wave:
    """A wave with a number that no other one has."""
    return Wave(world, next(_COUNT))


@contextmanager
def drill_range(root: Path, options: Options | None = None) -> Iterator[Range]:
    """Start a stack and let two jobs run without any disturbance."""
    data = root / "data"
    data.mkdir()
    write_rows(data / "rows.jsonl", 40)
    write_rows(data / "own.jsonl", 3_000)
    model = make_tiny_model(root / "models" / "tiny")
    with drill_stack(root / "집", model, data, options) as world:
        wave = new_wave(world)
        jobs = {False: wave.submit("training").job_id, True: wave.submit("prepare").job_id}
        for job_id in jobs.values():
            world.until(job_id, "succeeded")
        losses = {own: world.losses(job_id) for own, job_id in jobs.items()}
        assert [len(each) for each in losses.values()] == [STEPS, STEPS]
        yield Range(world, losses)


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """The stack of all waves that need nothing special."""
    with drill_range(tmp_path_factory.mktemp("훈련 drills")) as found:
        yield found


@pytest.fixture(scope="session")
def record() -> Record:
    """What this run has seen; the document is written from it."""
    return Record()
