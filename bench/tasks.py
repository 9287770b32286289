"""Every task type against a bare script of the library beneath it: same model, rows, batch, steps.

Both sides train at once and take their steps in turns, with a checkpoint in the middle, on one
core: threads that wait for each other on a busy machine would be what is measured. What counts is
the median ratio of samples per second behind the warm-up. Losses must agree: step by step, or on
average where chance has a part.

    python -m bench.tasks [TASK …] [--pairs 5] [--steps 40]
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.bare_tasks import LEARNING_RATE, Job, bare
from bench.task_cases import CASES, LORA
from bench.turns import Run, by_us, in_fork, launch_of, rounds_asked, step_by_step, verdict
from tests.trainer_core.small_tasks import write_any
from trainer_core.hardware import Hardware
from trainer_core.prepare import prepare
from trainer_core.resolve import resolve
from trainer_core.spec import Launch
from trainer_core.task import TASKS
from trainer_core.warm import preload

LIMIT = 0.98
WARM_UP = 5
SIDES = ("bare", "ours")
_SAME_LOSS = 1e-3  # sums in another order, over the steps of a run
_SAME_MEAN = 0.05  # of a loss over all steps, where both sides draw other masks, answers, partners


def launch(job: Job, name: str) -> dict[str, Any]:
    """The job as ours: what the bare side is told, in our words."""
    case = job.case
    spec = {
        "task": case.task,
        "model": {"source": "folder", "name_or_path": str(job.model)},
        "data": {"train": [{"source": "folder", "path": str(job.rows)}]},
        "training": {
            "learning_rate": LEARNING_RATE,
            "max_steps": job.total,
            "per_device_train_batch_size": case.batch,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
            "lr_scheduler_type": "cosine",
            "optim": "adamw_torch_fused",  # what a bare script gets by default
        },
        "precision": "fp32",
        "checkpoint": {"save_steps": job.save_at},
        "adapter": LORA if case.lora else None,
    }
    return launch_of(name, spec, job.folder, job.folder / "prepared", job.threads)


def lay(job: Job) -> None:
    """Write model, rows and prepared rows."""
    case = job.case
    case.make(job.model)
    write_any(job.folder / "rows", case.rows(job.total * (case.rows_per_step or case.batch)))
    made = Launch.model_validate(launch(job, "lay"))
    made = made.model_copy(update={"spec": resolve(made.spec, Hardware()).spec})
    prepare(made, job.folder / "prepared")


def check(job: Job, runs: Mapping[str, Run]) -> None:
    """Raise AssertionError unless both sides trained the same."""
    theirs, own = runs["bare"].losses, runs["ours"].losses
    assert theirs.keys() == own.keys(), "the sides did not report the same steps"
    if job.case.drawn:
        means = [statistics.fmean(losses.values()) for losses in (theirs, own)]
        apart = abs(means[0] - means[1]) / abs(means[0])
        assert apart <= _SAME_MEAN, f"the sides' mean losses are {means}"
        return
    apart = max(abs(theirs[step] - loss) for step, loss in own.items())
    assert apart <= _SAME_LOSS, f"the sides did not train the same: losses differ by {apart}"


def compare(job: Job, pairs: int) -> list[float]:
    """Ratios of samples per second, one a pair."""
    sides = {
        "bare": lambda name: bare(job, name),
        "ours": lambda name: by_us(launch(job, name), job.case.measure),
    }
    ratios = []
    print("milliseconds a step; CPU: their work to ours alone, blind to waiting for a core")
    print(f"{'pair':>4} {'bare':>10} {'ours':>10} {'ratio':>7} {'CPU':>7}", flush=True)
    for number, runs in enumerate(step_by_step(sides, job.folder, pairs), 1):
        check(job, runs)
        seconds = {name: run.seconds(WARM_UP, job.total) for name, run in runs.items()}
        ratios.append(seconds["bare"] / seconds["ours"])
        spent = [runs[side].cpu_seconds(WARM_UP, job.total) for side in SIDES]
        shown = [1000 * seconds[side] / (job.total - WARM_UP) for side in SIDES]
        line = f"{number:>4} {shown[0]:>10.1f} {shown[1]:>10.1f} {ratios[-1]:>7.3f}"
        print(f"{line} {spent[0] / spent[1]:>7.3f}", flush=True)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    options = _options(arguments)
    preload()
    good = True
    for name in TASKS.keys() - CASES.keys():
        if TASKS[name].FACTS.trains:
            print(f"-- {name}: not measured, bench/task_cases.py has no case of it")
    for name in options.tasks or CASES:
        print(f"-- {name}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            job = Job(CASES[name], Path(folder), WARM_UP + options.steps, options.threads)
            in_fork(lambda job=job: lay(job), job.folder / "lay.log")
            good &= verdict(f"{name} / bare", compare(job, options.pairs), LIMIT)
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("tasks", nargs="*", choices=[[], *CASES], default=[])
    parser.add_argument("--pairs", type=int, default=rounds_asked(5))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
