"""A trainer under the full stack against a bare TRL script: same model, rows, batch, checkpoints.

The stack carries events and uploads checkpoints meanwhile. Each pair runs in turns; the bare side
trains the very rows that the stack has prepared.

    python -m bench.stack [--pairs 5] [--steps 60]
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.trainer import (
    BATCH,
    LORA,
    ROWS_FILE,
    WARM_UP,
    Case,
    bare,
    make_model,
    measure,
    samples_per_second,
)
from bench.turns import in_fork
from tests.e2e.harness import World, running_stack
from trainer_core.warm import preload

LIMIT = 0.95
WORDS = ("order", "shoes", "return", "receipt", "morning", "tomorrow", "assistant", "thirty")


def write_texts(path: Path, count: int) -> None:
    """Write `count` different texts of about a hundred tokens."""
    rng = random.Random(0)  # noqa: S311 - not a secret
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(55, 75)))
            file.write(json.dumps({"text": f"{number} {words}"}) + "\n")


def job(case: Case) -> dict[str, Any]:
    """What the bare script does, as a job."""
    return {
        "task": {"type": "sft", "loss_on": "all", "max_length": 1024},
        "model": {"source": "folder", "name_or_path": str(case.model)},
        "data": {"train": [{"source": "folder", "path": str(case.folder / "data" / "rows.jsonl")}]},
        "training": {
            "learning_rate": 1e-3,
            "max_steps": case.total,
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
        },
        "precision": "fp32",
        "checkpoint": {"save_steps": case.save_at},
        "adapter": LORA,
    }


def by_the_stack(world: World, case: Case) -> tuple[float, dict[int, float]]:
    """Run a job and follow its stream; returns samples per second after the warm-up, and losses."""
    job_id = str(world.client.submit(job(case))["id"])
    steps = {
        frame.data["step"]: frame.body
        for frame in world.client.events(job_id)
        if frame.type == "metrics" and "loss" in frame.data
    }
    world.until(job_id, "succeeded")
    times = {step: datetime.fromisoformat(event["time"]) for step, event in steps.items()}
    seconds = (times[case.total] - times[WARM_UP]).total_seconds()
    return case.steps * BATCH / seconds, {s: e["data"]["loss"] for s, e in steps.items()}


def prepared_rows(folder: Path) -> list[dict[str, list[int]]]:
    """Read the rows that the stack has prepared."""
    import pyarrow as pa

    with pa.memory_map(str(folder / "train.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    return list(table.select(["input_ids", "labels"]).to_pylist())


def compare(world: World, case: Case, pairs: int) -> float:
    """Run the pairs, print them, and return the median ratio of samples per second."""
    print(f"{'pair':>4} {'bare TRL':>12} {'full stack':>13} {'ratio':>7}   samples/s")
    ratios = []
    for pair in range(pairs):
        found = {}
        for side in ("bare", "ours") if pair % 2 == 0 else ("ours", "bare"):
            if side == "ours":
                found[side] = by_the_stack(world, case)
            else:
                run = measure(case, bare, f"bare-{pair}")
                found[side] = samples_per_second(case, run), run.losses
        (theirs, expected), (own, losses) = found["bare"], found["ours"]
        apart = max(abs(expected[step] - loss) for step, loss in losses.items())
        assert apart <= 1e-3, f"the sides did not train the same: losses differ by {apart}"
        ratios.append(own / theirs)
        print(f"{pair + 1:>4} {theirs:>12.2f} {own:>13.2f} {ratios[-1]:>7.3f}", flush=True)
    return statistics.median(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is broken."""
    options = _options(arguments)
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        case = Case(folder, folder / "models" / "small", options.steps, threads=1, lora=True)
        in_fork(lambda: make_model(case), folder / "make.log")
        write_texts(folder / "data" / "rows.jsonl", case.total * BATCH)
        # As many slots as cores: every job gets one thread, as the bare side does.
        settings = {"POLAR_CPU_SLOTS": str(len(os.sched_getaffinity(0)))}
        with running_stack(folder / "home", case.model, folder / "data", settings) as world:
            by_the_stack(world, case)  # prepares the data, which all further jobs share
            [prepared] = [p for p in (folder / "home" / "prepared").iterdir() if p.is_dir()]
            (folder / ROWS_FILE).write_text(json.dumps(prepared_rows(prepared)))
            ratio = compare(world, case, options.pairs)
    good = ratio >= LIMIT
    word = "ok" if good else "TOO SLOW"
    print(f"full stack / bare TRL: median ratio {ratio:.3f} (limit {LIMIT}): {word}")
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    quick = bool(os.environ.get("BENCH_QUICK"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=3 if quick else 5)
    parser.add_argument("--steps", type=int, default=20 if quick else 60)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
