"""Packing against padding and against TRL's own packing, in real tokens per second on this CPU.

Rows of 20 to 120 tokens, and the same with a tenth as long as a row may be. Each step has about as
many real tokens on every side. Sides: rows padded to the longest of their batch; padded to
`max_length`; packed by us into rows of `max_length`; packed by TRL, which lays them out as one row.

    python -m bench.packing [--pairs 5] [--steps 6]
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.turns import Run, Watch, by_us, in_fork, launch_of, rounds_asked, step_by_step, verdict
from tests.trainer_core.small_tasks import write_rows
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.data.prepared import open_prepared
from trainer_core.hardware import Hardware
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.prepare import prepare
from trainer_core.resolve import resolve
from trainer_core.spec import Launch
from trainer_core.warm import preload

MAX_LENGTH = 512
PACKED_ROWS = 4  # a step of 2048 positions
WARM_UP = 1
FILL = 0.97
LIMITS = {
    # mix of lengths: the least ratio to padding to the longest, to max_length, to TRL's packing
    "20 to 120": (1.4, 2.5, 1.0),
    "20 to 120, a tenth of 512": (2.5, 2.5, 1.0),
}
VOCABULARY = 4096


@dataclass(frozen=True)
class Job:
    """One mix of lengths in a folder; `rows` are samples a padded step has."""

    folder: Path
    steps: int
    rows: int
    threads: int

    @property
    def total(self) -> int:
        return WARM_UP + self.steps


def make_model(path: Path) -> Path:
    """A Llama of SmolLM2's proportions in fewer layers: what attention weighs beside the rest
    decides what packing gives."""
    return make_tiny_model(
        path, hidden_size=384, layers=3, vocab_size=VOCABULARY, intermediate_size=1024
    )


def lengths(count: int, *, long: bool) -> list[int]:
    """Uniform in 20–120; every tenth is MAX_LENGTH where `long`."""
    rng = random.Random(0)  # noqa: S311 - not a secret
    return [
        MAX_LENGTH if long and number % 10 == 9 else rng.randint(20, 120) for number in range(count)
    ]


def write_texts(path: Path, wanted: Sequence[int]) -> None:
    """Texts of that many tokens: signs that the tokenizer never joins, and EOS."""
    rng = random.Random(1)  # noqa: S311 - not a secret
    write_rows(path, ({"text": "".join(rng.choices("~^`|@#$%&", k=n - 1))} for n in wanted))


def launch(job: Job, name: str, side: str) -> dict[str, Any]:
    """One epoch over all samples, packed or padded."""
    packs = side == "packed"
    task = {"type": "sft", "loss_on": "all", "max_length": MAX_LENGTH, "packing": packs}
    if side == "to max_length":
        task["pad_to_multiple_of"] = MAX_LENGTH
    spec = {
        "task": task,
        "model": {"source": "folder", "name_or_path": str(job.folder.parent / "model")},
        "data": {"train": [{"source": "folder", "path": str(job.folder / "rows.jsonl")}]},
        "training": {
            "learning_rate": 1e-4,
            "num_train_epochs": 1,
            "per_device_train_batch_size": PACKED_ROWS if packs else job.rows,
            "gradient_accumulation_steps": 1,
        },
        "checkpoint": {"save_steps": 10_000},
    }
    prepared = job.folder / ("packed" if packs else "padded")
    return launch_of(name, spec, job.folder, prepared, job.threads)


def by_trl(job: Job, name: str) -> Run:
    """TRL packs the same samples itself."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(job.threads)
    ensure_loss_kernel()
    watch = Watch()
    model = job.folder.parent / "model"
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(job.folder / name),
            per_device_train_batch_size=PACKED_ROWS,
            learning_rate=1e-4,
            num_train_epochs=1,
            optim="adamw_torch_fused",
            logging_steps=1,
            save_strategy="no",
            packing=True,
            max_length=MAX_LENGTH,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=open_prepared(job.folder / "padded").train.select_columns(["input_ids"]),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[watch.callback()],
    )
    trainer.train()
    return watch.run


def lay(job: Job, wanted: Sequence[int]) -> float:
    """Write and prepare the samples; returns how full our packed rows are."""
    write_texts(job.folder / "rows.jsonl", wanted)
    for side in ("packed", "padded"):
        made = Launch.model_validate(launch(job, "lay", side))
        made = made.model_copy(update={"spec": resolve(made.spec, Hardware()).spec})
        prepare(made, job.folder / side)
    report = open_prepared(job.folder / "packed").report
    assert report.total_tokens == sum(wanted), "the texts have other lengths than they should"
    return report.total_tokens / (report.train_rows * MAX_LENGTH)


def compare(job: Job, tokens: int, pairs: int) -> dict[str, list[float]]:
    """Ratios of real tokens per second, ours packed to each other side."""
    sides = {
        side: lambda name, side=side: by_us(launch(job, name, side))
        for side in ("packed", "to longest", "to max_length")
    }
    sides["TRL packing"] = lambda name: by_trl(job, name)
    print("real tokens per second:  " + "".join(f"{name:>14}" for name in sides), flush=True)
    ratios: dict[str, list[float]] = {name: [] for name in sides if name != "packed"}
    for number, runs in enumerate(step_by_step(sides, job.folder, pairs), 1):
        rates = {name: _rate(run, tokens) for name, run in runs.items()}
        print(f"{number:>23}  " + "".join(f"{rates[name]:>14.0f}" for name in sides), flush=True)
        for name, found in ratios.items():
            found.append(rates["packed"] / rates[name])
    return ratios


def _rate(run: Run, tokens: int) -> float:
    """Tokens per second behind the warm-up; one epoch goes over all tokens."""
    last = max(run.times)
    return tokens * (last - WARM_UP) / last / run.seconds(WARM_UP, last)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    options = _options(arguments)
    preload()
    good = True
    with tempfile.TemporaryDirectory() as name:
        in_fork(lambda: str(make_model(Path(name) / "model")), Path(name) / "make.log")
        for mix, limits in LIMITS.items():
            print(f"-- lengths {mix}", flush=True)
            good &= _mix(Path(name) / mix, options, limits)
    return 0 if good else 1


def _mix(folder: Path, options: argparse.Namespace, limits: tuple[float, ...]) -> bool:
    long = "tenth" in folder.name
    mean = statistics.fmean(lengths(1000, long=long))
    a_step = PACKED_ROWS * MAX_LENGTH / mean
    job = Job(folder, options.steps, round(a_step), options.threads)
    wanted = lengths(round(job.total * a_step), long=long)
    folder.mkdir()
    fill = in_fork(lambda: lay(job, wanted), folder / "lay.log")
    good = verdict("positions that hold a token", [fill], FILL)
    for (name, found), limit in zip(
        compare(job, sum(wanted), options.pairs).items(), limits, strict=True
    ):
        good &= verdict(f"packed / {name}", found, limit)
    return good


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=rounds_asked(5))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
