"""Our trainer against a bare TRL script: the same model, data, batch, checkpoints and losses.

Both sides run in turns, each in a fork of one process that imported the training stack, so that
what else the machine does falls on both. What counts is the median ratio of samples per second
over `--steps` steps, after the warm-up, with a checkpoint in the middle.

    python -m bench.trainer [--pairs 5] [--steps 60] [--model DIR] [--full] [--threads N]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.turns import Run, Watch, by_us, in_fork, in_turns, launch_of, measured
from tests.trainer_core.tiny import make_tiny_model, random_rows, write_prepared
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.warm import preload

LIMIT = 0.98
WARM_UP = 10
BATCH = 4
LENGTHS = (100, 140)
ROWS_FILE = "rows.json"  # in a case's folder: rows to train instead of random ones
LORA = {"type": "lora", "r": 8, "lora_alpha": 16, "lora_dropout": 0.05}
_SAME_LOSS = 1e-3


@dataclass(frozen=True)
class Case:
    """What both sides train."""

    folder: Path
    model: Path
    steps: int
    threads: int
    lora: bool

    @property
    def total(self) -> int:
        return WARM_UP + self.steps

    @property
    def save_at(self) -> int:
        return WARM_UP + self.steps // 2


def bare(case: Case, name: str) -> Run:
    """What someone writes who uses TRL by itself."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    ensure_loss_kernel()  # TRL 1.15 cannot compute its loss on a CPU; later versions can
    torch.set_num_threads(case.threads)
    watch = Watch()
    rows = _rows(case)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32),
        args=SFTConfig(
            output_dir=str(case.folder / name),
            per_device_train_batch_size=BATCH,
            learning_rate=1e-3,
            max_steps=case.total,
            lr_scheduler_type="cosine",
            optim="adamw_torch_fused",
            warmup_steps=0.1,
            logging_steps=1,
            save_steps=case.save_at,
            data_seed=42,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            disable_tqdm=True,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(case.model),
        peft_config=_peft(LoraConfig) if case.lora else None,
        callbacks=[watch.callback()],
    )
    trainer.train()
    return watch.run


def _peft(config: Any) -> Any:
    values = {k: v for k, v in LORA.items() if k != "type"}
    return config(task_type="CAUSAL_LM", target_modules="all-linear", **values)


def ours(case: Case, name: str) -> Run:
    """The same through `run_launch`."""
    return by_us(_launch(case, name))


def _launch(case: Case, name: str) -> dict[str, Any]:
    spec = {
        "task": {"type": "sft", "loss_on": "all"},
        "model": {"source": "folder", "name_or_path": str(case.model)},
        "data": {"train": [{"source": "folder", "path": "prepared"}]},
        "training": {
            "learning_rate": 1e-3,
            "max_steps": case.total,
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
            "optim": "adamw_torch_fused",  # what a bare script gets by default
        },
        "precision": "fp32",
        "checkpoint": {"save_steps": case.save_at},
        "adapter": LORA if case.lora else None,
    }
    return launch_of(name, spec, case.folder, case.folder / "prepared", case.threads)


def _rows(case: Case) -> list[dict[str, list[int]]]:
    given = case.folder / ROWS_FILE
    if given.exists():
        return list(json.loads(given.read_text()))
    low, high = LENGTHS
    return random_rows(case.total * BATCH, low=low, high=high)


def samples_per_second(case: Case, run: Run) -> float:
    """Behind the warm-up."""
    return case.steps * BATCH / run.seconds(WARM_UP, case.total)


def measure(case: Case, side: Callable[[Case, str], Run], name: str) -> Run:
    """One run in a fork."""
    return measured(lambda name: side(case, name), name, case.folder)


def compare(case: Case, pairs: int) -> float:
    """Run the pairs, print them, and return the median ratio of samples per second."""
    print("samples/s; CPU: seconds of work per sample, ours to bare (blind to waiting for a core)")
    print(f"{'pair':>4} {'bare TRL':>12} {'trainer_core':>13} {'ratio':>7} {'CPU':>7}")
    ratios = []
    sides = {"bare": lambda name: bare(case, name), "ours": lambda name: ours(case, name)}
    for pair, runs in enumerate(in_turns(sides, case.folder, pairs)):
        apart = max(abs(runs["bare"].losses[s] - loss) for s, loss in runs["ours"].losses.items())
        assert apart <= _SAME_LOSS, f"the sides did not train the same: losses differ by {apart}"
        theirs, own = (samples_per_second(case, runs[side]) for side in ("bare", "ours"))
        ratios.append(own / theirs)
        spent = [runs[side].cpu_seconds(WARM_UP, case.total) for side in ("bare", "ours")]
        work = spent[1] / spent[0]
        line = f"{pair + 1:>4} {theirs:>12.2f} {own:>13.2f} {ratios[-1]:>7.3f} {work:>7.3f}"
        print(line, flush=True)
    return statistics.median(ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is broken."""
    options = _options(arguments)
    preload()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case = Case(folder, folder / "model", options.steps, options.threads, not options.full)
        if options.model is not None:
            case = Case(folder, options.model, options.steps, options.threads, not options.full)
        in_fork(lambda: _make(case), folder / "make.log")
        ratio = compare(case, options.pairs)
    good = ratio >= LIMIT
    print(
        f"trainer_core / bare TRL: median ratio {ratio:.3f} (limit {LIMIT}):"
        f" {'ok' if good else 'TOO SLOW'}"
    )
    return 0 if good else 1


def make_model(case: Case) -> None:
    """Write the model unless it is there."""
    if not case.model.exists():
        make_tiny_model(case.model, hidden_size=256, layers=6, vocab_size=8192)


def _make(case: Case) -> None:
    make_model(case)
    write_prepared(case.folder / "prepared", _rows(case))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    quick = bool(os.environ.get("BENCH_QUICK"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=3 if quick else 7)
    parser.add_argument("--steps", type=int, default=20 if quick else 60)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--model", type=Path, help="a model folder instead of a random Llama")
    parser.add_argument("--full", action="store_true", help="train all weights, no adapter")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
