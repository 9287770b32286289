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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer_core.tiny import make_tiny_model, random_rows, write_prepared
from trainer_core.events import RunEvent
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.runner import run_launch
from trainer_core.spec import Launch
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


@dataclass(frozen=True)
class Run:
    """When each step was reported (wall and CPU seconds), and its loss."""

    times: dict[int, tuple[float, float]]
    losses: dict[int, float]

    def samples_per_second(self, case: Case) -> float:
        return case.steps * BATCH / (self.times[case.total][0] - self.times[WARM_UP][0])

    def cpu_seconds(self, case: Case) -> float:
        return self.times[case.total][1] - self.times[WARM_UP][1]


def bare(case: Case, name: str) -> Run:
    """What someone writes who uses TRL by itself."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    ensure_loss_kernel()  # TRL 1.15 cannot compute its loss on a CPU; later versions can
    torch.set_num_threads(case.threads)
    times, losses = {}, {}

    class Watch(TrainerCallback):
        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any, **_: Any) -> None:
            if "loss" in logs:
                times[state.global_step] = (time.monotonic(), time.process_time())
                losses[state.global_step] = logs["loss"]

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
        callbacks=[Watch()],
    )
    trainer.train()
    return Run(times, losses)


def _peft(config: Any) -> Any:
    values = {k: v for k, v in LORA.items() if k != "type"}
    return config(task_type="CAUSAL_LM", target_modules="all-linear", **values)


def ours(case: Case, name: str) -> Run:
    """The same through `run_launch`: events, fsynced checkpoints with manifests, a model folder."""
    times, losses = {}, {}

    def listen(event: RunEvent) -> None:
        if event.type == "metrics" and "loss" in event.data:
            times[event.data["step"]] = (time.monotonic(), time.process_time())
            losses[event.data["step"]] = event.data["loss"]

    code = run_launch(_launch(case, name), {}, listen)
    assert code == 0, (case.folder / name / "exit.json").read_text()
    return Run(times, losses)


def _launch(case: Case, name: str) -> Launch:
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
    paths = {"work": str(case.folder / name), "prepared": str(case.folder / "prepared")}
    return Launch.model_validate(
        {
            "attempt_id": name,
            "job_id": "bench",
            "job_name": "bench",
            "spec": spec,
            "paths": paths,
            "threads": case.threads,
        }
    )


def _rows(case: Case) -> list[dict[str, list[int]]]:
    given = case.folder / ROWS_FILE
    if given.exists():
        return list(json.loads(given.read_text()))
    low, high = LENGTHS
    return random_rows(case.total * BATCH, low=low, high=high)


def in_fork(work: Callable[[], Any], log: Path) -> Any:
    """Run `work` in a fork, its output in `log`; returns what it returned, through JSON."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        result = work()
        with os.fdopen(send, "w") as answer:
            json.dump(result, answer)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise RuntimeError(log.read_text()[-2000:])
    return json.loads(text)


def measure(case: Case, side: Callable[[Case, str], Run], name: str) -> Run:
    """One run in a fork."""

    def work() -> list[Any]:
        run = side(case, name)
        return [run.times, run.losses]

    times, losses = in_fork(work, case.folder / f"{name}.log")
    return Run({int(k): tuple(v) for k, v in times.items()}, {int(k): v for k, v in losses.items()})


def compare(case: Case, pairs: int) -> float:
    """Run the pairs, print them, and return the median ratio of samples per second."""
    print("samples/s; CPU: seconds of work per sample, ours to bare (blind to waiting for a core)")
    print(f"{'pair':>4} {'bare TRL':>12} {'trainer_core':>13} {'ratio':>7} {'CPU':>7}")
    ratios = []
    for pair in range(pairs):
        sides = [("bare", bare), ("ours", ours)]
        runs = {
            name: measure(case, side, f"{name}-{pair}")
            for name, side in (sides if pair % 2 == 0 else sides[::-1])
        }
        apart = max(abs(runs["bare"].losses[s] - loss) for s, loss in runs["ours"].losses.items())
        assert apart <= _SAME_LOSS, f"the sides did not train the same: losses differ by {apart}"
        theirs, own = (runs[side].samples_per_second(case) for side in ("bare", "ours"))
        ratios.append(own / theirs)
        work = runs["ours"].cpu_seconds(case) / runs["bare"].cpu_seconds(case)
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
