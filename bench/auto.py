"""What is left open against what could be said instead: `auto` must be about as quick as the best.

Every choice of `resolve` that a machine without a GPU leaves: precision, attention, how a step's
rows are put into batches, recomputed activations, kernel of the optimizer. All sides
train the same rows, as many a step, on all cores; each says one thing and leaves the others open.
They take their steps in turns; bf16, ten times as slow on most CPUs, takes few. Two processes are
told beside them without a limit, by whole runs in turns: on a CPU `auto` takes one (ADR 0019).

    python -m bench.auto [--rounds 5] [--steps 12]
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.task_cases import LORA, llama
from bench.turns import (
    by_us,
    in_fork,
    launch_of,
    rounds_asked,
    step_by_step,
    told,
    verdict,
)
from tests.trainer_core.tiny import random_rows, write_prepared
from trainer_core.warm import preload

LIMIT = 0.95
WARM_UP = 3
A_STEP = 16  # rows, as `resolve` has it for this task
Choice = dict[str, Any]


def _rows(batch: int, processes: int = 1) -> Choice:
    accumulation = A_STEP // (batch * processes)
    training = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
    }
    if processes == 1:
        return {"training": training}
    return {"training": training, "distributed": {"strategy": "ddp", "processes": processes}}


AUTO = "auto"
CHOICES: dict[str, Choice] = {
    AUTO: {},
    "eager attention": {"model": {"attn_implementation": "eager"}},
    "16 x 1 rows": _rows(16),
    "8 x 2 rows": _rows(8),
    "2 x 8 rows": _rows(2),
    "checkpointing": {"training": {"gradient_checkpointing": True}},
    "unfused AdamW": {"training": {"optim": "adamw_torch"}},
}
SLOW: dict[str, Choice] = {AUTO: {}, "bf16": {"precision": "bf16"}}
SLOW_STEPS = 3
TWO = "two processes"
PROCESSES: dict[str, Choice] = {AUTO: {}, TWO: _rows(4, processes=2)}


def launch(folder: Path, name: str, choice: Choice, steps: int) -> dict[str, Any]:
    """A spec that says as little as it can, and `choice`."""
    spec: dict[str, Any] = {
        "task": {"type": "sft"},
        "model": {"source": "folder", "name_or_path": str(folder.parent / "model")},
        "data": {"train": [{"source": "folder", "path": "prepared"}]},
        "training": {"max_steps": steps},
        "checkpoint": {"save_steps": 10_000},
        "adapter": LORA,
    }
    for block, values in choice.items():
        spec[block] = spec.get(block, {}) | values if isinstance(values, dict) else values
    cores = len(os.sched_getaffinity(0))
    return launch_of(name, spec, folder, folder.parent / "prepared", cores)


def _ratios(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of steps per second, `auto` to each choice, the median over the steps; `taken` are seconds.

    Step by step, because all sides have the same rows in it and take it one behind the other.
    """
    ours = taken[AUTO]
    return {
        name: statistics.median(their / own for their, own in zip(theirs, ours, strict=True))
        for name, theirs in taken.items()
        if name != AUTO
    }


def compare(
    folder: Path, choices: Mapping[str, Choice], rounds: int, steps: int
) -> Iterator[dict[str, float]]:
    """One process: yield each round's ratios."""
    folder.mkdir()
    sides = {
        name: lambda run, choice=choice: by_us(launch(folder, run, choice, steps))
        for name, choice in choices.items()
    }
    for runs in step_by_step(sides, folder, rounds):
        taken = {name: run.each(WARM_UP, steps) for name, run in runs.items()}
        shown = (f"{name} {1000 * statistics.median(each):.0f}" for name, each in taken.items())
        print(f"milliseconds a step: {', '.join(shown)}", flush=True)
        yield _ratios(taken)


def compare_processes(folder: Path, rounds: int, steps: int) -> Iterator[dict[str, float]]:
    """One process and two: yield each round's ratios, by the times in the events."""
    folder.mkdir()
    for number in range(rounds):
        taken = {}
        for place, name in enumerate(list(PROCESSES)[:: -1 if number % 2 else 1]):
            run = f"processes-{number}-{place}"
            made = launch(folder, run, PROCESSES[name], steps)
            in_fork(lambda made=made: bool(by_us(made)), folder / f"{run}.log")
            taken[name] = told(folder / run).each(WARM_UP, steps)
        yield _ratios(taken)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is broken."""
    options = _options(arguments)
    steps = WARM_UP + options.steps
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def lay() -> bool:
            llama(folder / "model")
            write_prepared(folder / "prepared", random_rows(A_STEP * steps, low=20, high=120))
            return True

        in_fork(lay, folder / "lay.log")
        found = (
            [*compare(folder / "quick", CHOICES, options.rounds, steps)],
            [*compare(folder / "slow", SLOW, options.rounds, WARM_UP + SLOW_STEPS)],
        )
        beside = [each[TWO] for each in compare_processes(folder / "two", options.rounds, steps)]
    good = True
    for some in found:
        for name in some[0]:
            good &= verdict(f"auto / {name}", [each[name] for each in some], LIMIT)
    print(f"auto / {TWO}, without a limit (ADR 0019): {statistics.median(beside):.3f}")
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=rounds_asked(5))
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
