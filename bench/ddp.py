"""DDP on two processes of one thread against two unconnected processes: what being connected costs.

Samples per second of all processes together, behind the warm-up; with an adapter, whose gradients
are small, and with all weights trained.

    python -m bench.ddp [--pairs 5] [--steps 20]
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.task_cases import LORA, llama
from bench.turns import by_us, in_fork, launch_of, rounds_asked, together, told, verdict
from tests.trainer_core.tiny import random_rows, write_prepared
from trainer_core.warm import preload

LIMIT = 0.85
PROCESSES = 2
BATCH = 4
WARM_UP = 5
SIDES = ("apart", "connected")


@dataclass(frozen=True)
class Job:
    """What all processes train."""

    folder: Path
    steps: int
    lora: bool

    @property
    def total(self) -> int:
        return WARM_UP + self.steps


def launch(job: Job, name: str, processes: int) -> dict[str, Any]:
    """One run; `processes` share its steps."""
    spread = {"strategy": "ddp", "processes": processes} if processes > 1 else {"strategy": "none"}
    spec = {
        "task": {"type": "sft", "loss_on": "all"},
        "model": {"source": "folder", "name_or_path": str(job.folder / "model")},
        "data": {"train": [{"source": "folder", "path": "prepared"}]},
        "training": {
            "learning_rate": 1e-4,
            "max_steps": job.total,
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
        },
        "checkpoint": {"save_steps": 10_000},
        "distributed": spread,
        "adapter": LORA if job.lora else None,
    }
    return launch_of(name, spec, job.folder, job.folder / "prepared", processes)


def lay(job: Job) -> None:
    """Write the model and prepared rows of one length: no process waits for a longer batch."""
    llama(job.folder / "model")
    rows = random_rows(PROCESSES * BATCH * job.total, low=120, high=120)
    write_prepared(job.folder / "prepared", rows)


def run(job: Job, name: str, processes: int) -> None:
    """Train once; who reads the events knows the rest."""
    by_us(launch(job, name, processes))


def samples_per_second(job: Job, name: str, processes: int) -> float:
    """Of one finished run, by the median of the times between its events: a machine that others
    use stands still now and then, and two that wait for each other both do."""
    times = told(job.folder / name).each(WARM_UP, job.total)
    return processes * BATCH / statistics.median(times)


def apart(job: Job, number: int) -> float:
    """Two runs at once that know nothing of each other."""
    names = [f"apart-{number}-{each}" for each in range(PROCESSES)]
    together(
        [lambda name=name: run(job, name, 1) for name in names],
        [job.folder / f"{name}.log" for name in names],
    )
    return sum(samples_per_second(job, name, 1) for name in names)


def connected(job: Job, number: int) -> float:
    """One run in two processes."""
    name = f"connected-{number}"
    in_fork(lambda: run(job, name, PROCESSES) or True, job.folder / f"{name}.log")
    return samples_per_second(job, name, PROCESSES)


def compare(job: Job, pairs: int) -> list[float]:
    """Ratios of samples per second, one a pair."""
    print(f"{'pair':>4} {'apart':>10} {'connected':>10} {'ratio':>7}   samples/s", flush=True)
    ratios = []
    ways = dict(zip(SIDES, (apart, connected), strict=True))
    for number in range(pairs):
        order = SIDES[:: -1 if number % 2 else 1]
        rates = {side: ways[side](job, number) for side in order}
        ratios.append(rates["connected"] / rates["apart"])
        shown = "".join(f" {rates[side]:>10.1f}" for side in SIDES)
        print(f"{number + 1:>4}{shown} {ratios[-1]:>7.3f}", flush=True)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    options = _options(arguments)
    preload()
    good = True
    for what in ("LoRA", "all weights"):
        print(f"-- {what}", flush=True)
        with tempfile.TemporaryDirectory() as name:
            job = Job(Path(name), options.steps, lora=what == "LoRA")
            in_fork(lambda job=job: lay(job) or True, job.folder / "lay.log")
            good &= verdict(
                f"two connected / two apart, {what}", compare(job, options.pairs), LIMIT
            )
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=rounds_asked(5))
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
