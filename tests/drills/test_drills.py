"""Kill, freeze, cut, slow and fill everything: no job is lost, doubled or changed by it."""

import random
import sys
import time

import pytest

from tests.drills import cells
from tests.drills.checks import check_job, check_rest
from tests.drills.conftest import Range, Record, new_wave
from tests.drills.faults import strike

pytestmark = [pytest.mark.train, pytest.mark.timeout(600)]


def marked(waves: list[cells.Wave]) -> list[object]:
    """Parameters, of which `make test` runs a seeded quarter."""
    chosen = [] if cells.everything() else cells.quarter()
    return [
        pytest.param(wave, id=wave.id, marks=[] if wave in chosen else pytest.mark.drill)
        for wave in waves
    ]


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
    finally:
        wave.held.release()
    for moment, case in wave.cases.items():
        own = moment == "prepare"
        outcome = check_job(ground.world, case, ground.losses[own])
        record.outcomes[kind.component, kind.fault, moment] = outcome
        tell(
            f"  {kind.id:24} {moment:10} {outcome.status:10} {outcome.seconds:5.1f} s "
            f"{', '.join(outcome.attempts)}"
        )
    check_rest(ground.world)
    took = time.monotonic() - began
    tell(f"{kind.id}: {gathered - began:.1f} s to gather, {took:.1f} s in all")


def tell(line: str) -> None:
    """Show how far it has come."""
    sys.stderr.write(f"{line}\n")


@pytest.mark.parametrize("kind", marked(cells.COMMON_WAVES))
def test_b_fault(common: Range, record: Record, kind: cells.Wave):
    run_wave(common, kind, record)
