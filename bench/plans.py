"""A plan of all rows against the preparation that a job needs anyway.

Both sides fork from one process with the libraries imported, as the warm server does. A plan is
three children: the first rows, all rows, and what they tell; the job then has its data already.

    python -m bench.plans [--pairs 3] [--rows 100000]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.prepare import MARKED, conversations
from bench.turns import in_fork, rounds_asked, verdict
from tests.trainer_core.small_tasks import write_rows
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.plans.plan import estimate, plan
from trainer_core.prepare import prepare
from trainer_core.resolve import Hardware, resolve
from trainer_core.spec import Launch
from trainer_core.warm import preload

LIMIT = 1.1  # of the preparation's time until the plan is exact
FIRST = 1000


def launch_of(folder: Path, rows: Path, work: str) -> Launch:
    """A job on the rows with its work folder."""
    return Launch.model_validate(
        {
            "attempt_id": work,
            "job_id": "bench",
            "job_name": "bench",
            "spec": {
                "task": {"type": "sft", "loss_on": "assistant"},
                "model": {"source": "folder", "name_or_path": str(folder / "model")},
                "data": {"train": [{"source": "folder", "path": str(rows)}]},
            },
            "paths": {"work": str(folder / work)},
        }
    )


def prepared(folder: Path, rows: Path, work: str) -> bool:
    """The preparation, as a job has it made."""
    launch = launch_of(folder, rows, work)
    spec = resolve(launch.spec, Hardware()).spec
    prepare(launch.model_copy(update={"spec": spec}), folder / work / "data")
    return True


def estimated(folder: Path, rows: Path, work: str) -> tuple[float, float]:
    """Bounds of the steps by the first rows."""
    found = estimate(launch_of(folder, rows, work), {}, FIRST).bounds.steps
    assert found is not None
    assert found.high is not None
    return found.low, found.high


def told(folder: Path, rows: Path, work: str) -> int:
    """The exact steps, of data that are there."""
    launch = launch_of(folder, rows, work)
    paths = launch.paths.model_copy(update={"prepared": str(folder / work / "data")})
    steps = plan(launch.model_copy(update={"paths": paths}), {}).steps
    assert steps is not None
    return steps.total


def compare(folder: Path, rows: Path, pairs: int) -> list[float]:
    """Time of the plan by that of the preparation, one ratio a pair."""
    print(f"{'pair':>4} {'prepare':>8} {'plan':>8} {'first':>8} {'ratio':>7}   seconds", flush=True)
    ratios = []
    log = folder / "bench.log"
    for number in range(pairs):
        took = {}
        for side in ["alone", "plan"][:: -1 if number % 2 else 1]:
            work = f"{side}-{number}"
            began = time.monotonic()
            if side == "plan":
                low, high = in_fork(lambda work=work: estimated(folder, rows, work), log)
                took["first"] = time.monotonic() - began
            in_fork(lambda work=work: prepared(folder, rows, work), log)
            if side == "plan":
                total = in_fork(lambda work=work: told(folder, rows, work), log)
                assert low <= total <= high, f"{total} steps are not within {low} and {high}"
            took[side] = time.monotonic() - began
        ratios.append(took["plan"] / took["alone"])
        shown = f"{took['alone']:>8.2f} {took['plan']:>8.2f} {took['first']:>8.2f}"
        print(f"{number + 1:>4} {shown} {ratios[-1]:>7.3f}", flush=True)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=rounds_asked(3))
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        log = folder / "lay.log"
        in_fork(lambda: str(make_tiny_model(model, vocab_size=4096, chat_template=MARKED)), log)
        rows = write_rows(folder / "rows.jsonl", conversations(options.rows))
        ratios = compare(folder, rows, options.pairs)
        return 0 if verdict("plan / prepare", ratios, LIMIT, at_most=True) else 1


if __name__ == "__main__":
    sys.exit(main())
