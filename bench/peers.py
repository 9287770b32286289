"""ms-swift and LLaMA-Factory on the same model, tokens and batch: each in its own environment.

Tokens are equal because every text is longer than a row and cut to it: a step is BATCH rows of
LENGTH tokens on every side, which each side's own count proves. LoRA, fp32, one core. What counts
is the median ratio of tokens per second behind the warm-up; steps are taken in turns with ours.

    python -m bench.peers [PEER …] [--pairs 5] [--steps 20]
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environments import NotInstalled, programs_of
from bench.packing import make_model
from bench.turns import (
    Run,
    by_us,
    held_baton,
    in_fork,
    launch_of,
    rounds_asked,
    step_by_step,
    verdict,
)
from tests.trainer_core.small_tasks import write_rows
from trainer_core.data.prepared import open_prepared
from trainer_core.hardware import Hardware
from trainer_core.prepare import prepare
from trainer_core.resolve import resolve
from trainer_core.spec import Launch
from trainer_core.warm import preload

LIMIT = 0.97
LENGTH, BATCH = 128, 4
RATE = 1e-4
WARM_UP = 5
TORCH = "torch==2.13.0"
_SAME_MEAN = (
    0.05  # of the loss over all steps: rows come in another order, adapters begin elsewhere
)
_SECONDS = 600
SCRIPT = Path(__file__).with_name("peer_run.py")
Settings = Callable[["Job", Path], dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """What all sides train."""

    folder: Path
    steps: int

    @property
    def total(self) -> int:
        return WARM_UP + self.steps

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def model(self) -> Path:
        return self.folder / "model"


@dataclass(frozen=True)
class Peer:
    """Another trainer: what is installed, and how it is told what to do."""

    requirements: tuple[str, ...]
    settings: Settings
    variables: dict[str, str]
    without: tuple[str, ...] = ()
    """Packages that it requires and that no build for this torch is at hand of everywhere."""
    stubs: tuple[str, ...] = ()
    """Modules of those that it imports and does not use: empty ones serve."""


def _common(job: Job, out: Path) -> dict[str, Any]:
    """Settings that both name as Transformers does."""
    return {
        "output_dir": str(out),
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "learning_rate": RATE,
        "max_steps": job.total,
        "lr_scheduler_type": "cosine",
        "optim": "adamw_torch_fused",
        "logging_steps": 1,
        "save_steps": 10_000,
        "dataloader_num_workers": 0,
        "report_to": "none",
        "seed": 42,
    }


def swift(job: Job, out: Path) -> dict[str, Any]:
    """`swift pt`."""
    return _common(job, out) | {
        "model": str(job.model),
        "model_type": "llama",
        "template": "dummy",
        "check_model": "false",
        "torch_dtype": "float32",
        "dataset": str(job.folder / "messages.jsonl"),
        "max_length": LENGTH,
        "truncation_strategy": "right",
        "split_dataset_ratio": 0,
        "tuner_type": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0,
        "target_modules": "all-linear",
        "gradient_checkpointing": "false",
        "use_cpu": "true",
    }


def llama_factory(job: Job, out: Path) -> dict[str, Any]:
    """`llamafactory-cli train`, stage `pt`, which cuts one stream of texts into full rows."""
    return _common(job, out) | {
        "stage": "pt",
        "do_train": True,
        "model_name_or_path": str(job.model),
        "dataset": "rows",
        "dataset_dir": str(job.folder),
        "cutoff_len": LENGTH,
        "finetuning_type": "lora",
        "lora_rank": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "lora_target": "all",
        "disable_gradient_checkpointing": True,
        "overwrite_cache": True,
        "use_cpu": True,
        "bf16": False,
    }


PEERS = {
    "ms-swift": Peer(("ms-swift==4.6.0", TORCH), swift, {}),
    "llamafactory": Peer(
        ("llamafactory==0.9.5", TORCH),
        llama_factory,
        {"DISABLE_VERSION_CHECK": "1"},
        without=("torchaudio", "torchvision"),
        stubs=("torchaudio",),
    ),
}


def lay(job: Job) -> bool:
    """Write the model, texts in each side's format, and our prepared rows."""
    make_model(job.model)
    rng = random.Random(0)  # noqa: S311 - not a secret
    count = job.total * BATCH + 8
    texts = ["".join(rng.choices("~^`|@#$%&", k=LENGTH + 8)) for _ in range(count)]
    write_rows(job.rows, ({"text": text} for text in texts))
    said = ([{"role": "assistant", "content": text}] for text in texts)
    write_rows(job.folder / "messages.jsonl", ({"messages": messages} for messages in said))
    listed = {"rows": {"file_name": job.rows.name, "columns": {"prompt": "text"}}}
    (job.folder / "dataset_info.json").write_text(json.dumps(listed))
    made = Launch.model_validate(launch(job, "lay"))
    made = made.model_copy(update={"spec": resolve(made.spec, Hardware()).spec})
    prepare(made, job.folder / "prepared")
    report = open_prepared(job.folder / "prepared").report
    assert report.total_tokens == count * LENGTH, "our rows are not full"
    return True


def launch(job: Job, name: str) -> dict[str, Any]:
    """The same as ours."""
    spec = {
        "task": {"type": "clm", "max_length": LENGTH, "packing": "none"},
        "model": {"source": "folder", "name_or_path": str(job.model)},
        "data": {
            "train": [{"source": "folder", "path": str(job.rows)}],
            "over_length": "truncate_right",
        },
        "training": {
            "learning_rate": RATE,
            "max_steps": job.total,
            "per_device_train_batch_size": BATCH,
            "gradient_accumulation_steps": 1,
        },
        "precision": "fp32",
        "checkpoint": {"save_steps": 10_000},
        "adapter": {"type": "lora", "r": 8, "lora_alpha": 16, "lora_dropout": 0},
    }
    return launch_of(name, spec, job.folder, job.folder / "prepared", 1)


def by_peer(job: Job, name: str, programs: Path, run_name: str) -> Run:
    """One training of a peer in a process of its own; raises RuntimeError when it fails."""
    peer, out = PEERS[name], job.folder / run_name
    out.mkdir()
    for stub in peer.stubs:
        (out / "stubs").mkdir(exist_ok=True)
        (out / "stubs" / f"{stub}.py").touch()
    settings, notes = out / "settings.json", out / "notes.jsonl"
    settings.write_text(json.dumps(peer.settings(job, out / "run")))
    variables = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(out / "stubs"),
        **peer.variables,
    }
    handed = held_baton().hand_on()
    done = subprocess.run(
        [str(programs / "python"), str(SCRIPT), name, str(settings), str(notes)],
        cwd=out,
        **handed | {"env": handed["env"] | variables},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode or not notes.exists():
        raise RuntimeError(f"{name} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    lines = [json.loads(line) for line in notes.read_text().splitlines()]
    tokens = lines[-1][3]
    assert tokens == job.total * BATCH * LENGTH, f"{name} trained on {tokens} tokens"
    run = Run({}, {})
    for step, at, loss, _ in lines:
        run.times[step], run.losses[step] = (at, 0.0), loss
    return run


def compare(job: Job, name: str, pairs: int) -> list[float]:
    """Ratios of tokens per second, one a pair."""
    peer = PEERS[name]
    programs = programs_of(name, *peer.requirements, without=peer.without)
    print(f"{'pair':>4} {'peer':>10} {'ours':>10} {'ratio':>7}   tokens/s", flush=True)
    ratios = []
    sides = {
        "peer": lambda run: by_peer(job, name, programs, f"{name} {run}"),
        "ours": lambda run: by_us(launch(job, f"{name} {run}")),
    }
    folder = job.folder / f"runs of {name}"
    folder.mkdir()
    for number, runs in enumerate(step_by_step(sides, folder, pairs)):
        means = [statistics.fmean(runs[side].losses.values()) for side in ("peer", "ours")]
        apart = abs(means[0] - means[1]) / means[0]
        assert apart <= _SAME_MEAN, f"the sides' mean losses are {means}"
        done = job.steps * BATCH * LENGTH
        rates = [done / runs[side].seconds(WARM_UP, job.total) for side in ("peer", "ours")]
        ratios.append(rates[1] / rates[0])
        print(f"{number + 1:>4} {rates[0]:>10.0f} {rates[1]:>10.0f} {ratios[-1]:>7.3f}", flush=True)
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a limit is broken."""
    options = _options(arguments)
    preload()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), options.steps)
        in_fork(lambda: lay(job), job.folder / "lay.log")
        for name in options.peers or PEERS:
            print(f"-- {name}", flush=True)
            try:
                ratios = compare(job, name, options.pairs)
            except NotInstalled as error:
                print(f"NOT measured, its environment cannot be made: {error}", flush=True)
                good = False
                continue
            good &= verdict(f"trainer_core / {name}", ratios, LIMIT)
    return 0 if good else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("peers", nargs="*", choices=[[], *PEERS], default=[])
    parser.add_argument("--pairs", type=int, default=rounds_asked(5))
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
