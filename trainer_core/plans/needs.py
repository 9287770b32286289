"""Memory and disk that a run needs, by the formulas that the run itself goes by."""

import shutil
from pathlib import Path
from typing import Any

from trainer_core.checkpoints import checkpoint_bytes
from trainer_core.data.encoders import WITHOUT_TOKENIZER
from trainer_core.data.prepared import Prepared
from trainer_core.data.report import LEDGER
from trainer_core.hardware import Hardware
from trainer_core.memory import (
    DTYPE_BYTES,
    Shape,
    memory_parts,
    trained_values,
    values_beside,
)
from trainer_core.plans.results import Disk, Memory, Steps
from trainer_core.plans.rows import row_lengths
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_GB = 1e9
_GROWING = ("train.arrow", LEDGER)
"""Prepared files that are as large as there are many rows."""


def memory_of(
    spec: TrainSpec, shape: Shape, data: Prepared, hardware: Hardware, *, trains: bool
) -> Memory:
    """Of a batch of the longest prepared rows; `trains` is False for an evaluation."""
    training = spec.training
    checkpointed = bool(training.gradient_checkpointing)
    parts = memory_parts(spec, shape, checkpointed=checkpointed, trains=trains)
    rows = training.per_device_train_batch_size if trains else training.per_device_eval_batch_size
    tokens = (rows or 1) * _tokens_of_row(spec, data)
    return Memory(
        parameters=shape.parameters,
        weights_gb=parts.weights / _GB,
        gradients_gb=parts.gradients / _GB,
        optimizer_gb=parts.optimizer / _GB,
        activations_gb=tokens * parts.activations / _GB,
        logits_gb=tokens * parts.logits / _GB,
        total_gb=(parts.fixed + tokens * parts.token) / _GB,
        available_gb=hardware.gpu_memory_gb or None,
    )


def _tokens_of_row(spec: TrainSpec, data: Prepared) -> int:
    """Of the longest row with all of its sequences; images are what they are to most models."""
    facts = task_of(spec).FACTS
    if facts.rows in WITHOUT_TOKENIZER:
        return spec.task.row_length or 1
    answer: int = getattr(spec.task, "max_completion_length", None) or 0
    return (max(row_lengths(data.train)) + answer) * facts.defaults.sequences


def disk_of(
    spec: TrainSpec, shape: Shape, data: tuple[Prepared, float], work: Path, steps: Steps | None
) -> Disk:
    """Of the run's folder, which lies (or will lie) at `work`; nothing where nothing is trained.

    `data` are prepared rows, and how many times as many there will be.
    """
    files = (path for path in data[0].folder.rglob("*") if path.is_file())
    sizes = [(path.stat().st_size, path.name in _GROWING) for path in files]
    prepared = sum(round(size * data[1]) if grows else size for size, grows in sizes)
    free = shutil.disk_usage(_existing(work)).free
    if steps is None:
        needs: dict[str, Any] = dict.fromkeys(("checkpoint", "checkpoints", "best", "model"), 0)
        return Disk(prepared=prepared, **needs, total=prepared, free=free)
    trained = trained_values(spec, shape)
    weights = shape.parameters * DTYPE_BYTES[spec.model.dtype]
    saved = trained * 4 if spec.adapts else weights
    optim = spec.training.optim
    checkpoint = checkpoint_bytes(round(saved), [round(trained)], optim, values_beside(spec))
    count = _checkpoints(spec, steps)
    best = round(saved) if spec.checkpoint.load_best_model_at_end else 0
    model = round(weights if spec.publish.merge == "always" else saved)
    return Disk(
        prepared=prepared,
        checkpoint=checkpoint,
        checkpoints=count,
        best=best,
        model=model,
        total=prepared + count * checkpoint + best + model,
        free=free,
    )


def _checkpoints(spec: TrainSpec, steps: Steps) -> int:
    """At once: an old one goes when a new one is whole. The last step is saved in any case."""
    wish = spec.checkpoint
    every = {
        "no": steps.total,
        "epoch": steps.per_epoch,
        "steps": 1 if wish.save_steps == "auto" else wish.save_steps,
    }[wish.save_strategy]
    return min(wish.save_total_limit + 1, -(-steps.total // every))


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
