"""The model folder: built aside, reopened and checked, then renamed into place."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainer_core.checkpoints import disk_errors, require_space
from trainer_core.context import Loaded
from trainer_core.errors import Diverged, TrainerError
from trainer_core.publish.card import CardFacts, model_card
from trainer_core.publish.manifest import Manifest, sync_folder, write_manifest
from trainer_core.report import Reporter
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

FOLDER = "model"
STAGING = ".model.writing"
_PROBE_TOKENS = 16


@dataclass(frozen=True)
class Publication:
    """What is published beside the weights; `hashes` are (spec_hash, data_hash).

    `complete` adds to the folder what the kind of model has beside weights and tokenizer.
    """

    spec: TrainSpec
    card: CardFacts
    lock: dict[str, Any]
    hashes: tuple[str, str]
    complete: Callable[[Path], None]


def publish_model(
    work: Path, model: Any, loaded: Loaded, publication: Publication, report: Reporter
) -> Path:
    """Write `model/` with weights, tokenizer, card and run lock, its manifest last.

    Raises DiskFull, and TrainerError where the written weights are not what was trained.
    """
    staging = work / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    needed = _needed_bytes(model, publication.spec)
    require_space(work, needed, "the model")
    try:
        with disk_errors(work, needed):
            manifest = _write(staging, model, loaded, publication, report)
            folder = _into_place(staging, work / FOLDER)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    report.emit("artifact", path=FOLDER, kind="model", bytes=manifest.total_bytes)
    return folder


def _write(
    folder: Path, model: Any, loaded: Loaded, publication: Publication, report: Reporter
) -> Manifest:
    folder.mkdir(parents=True)
    card = publication.card
    if _is_adapter(model) and publication.spec.publish.merge == "always":
        model, drift = merge(model)
        card = replace(card, kind="merged", merge_drift=drift)
    if hasattr(_config_of(model), "use_cache"):
        _config_of(model).use_cache = True  # training turned it off; generation wants it
    model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    publication.complete(folder)
    if _is_adapter(model):
        _name_base(folder / "adapter_config.json", loaded)
        if task_of(publication.spec).FACTS.model.new_head:
            _config_of(model).save_pretrained(folder)  # the label map
    check_weights(folder, model, report)
    (folder / "README.md").write_text(model_card(publication.spec, card))
    (folder / "run_lock.json").write_text(json.dumps(publication.lock, indent=1))
    return write_manifest(folder, "model", card.steps, publication.hashes)


def _into_place(staging: Path, folder: Path) -> Path:
    if folder.exists():
        (folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(folder)
    staging.rename(folder)
    sync_folder(folder.parent)
    return folder


def merge(model: Any) -> tuple[Any, float]:
    """Merge an adapter into its base; also the largest difference of logits on a probe.

    The base is never quantized here: it is held in 16 or 32 bits.
    """
    import torch

    model.eval()
    vocabulary = model.get_input_embeddings().num_embeddings
    probe = torch.arange(_PROBE_TOKENS, device=model.device)[None] * 7919 % vocabulary
    with torch.no_grad():
        before = model(input_ids=probe)[0].float()
        merged = model.merge_and_unload()
        after = merged(input_ids=probe)[0].float()
    return merged, (before - after).abs().max().item()


def check_weights(folder: Path, model: Any, report: Reporter) -> None:
    """Reopen what was written: something, finite, and an adapter that is not all zero.

    Raises TrainerError, and Diverged for what training broke. An adapter that training left at
    zero is written rightly: a warning.
    """
    tensors = 0
    written = 0.0
    for name, tensor in _tensors(folder):
        tensors += 1
        if not tensor.numel():
            raise TrainerError(f"the written weights are not usable: {name} is empty")
        if not tensor.isfinite().all():
            raise Diverged(
                f"the trained weights are not finite ({name}): lower training.learning_rate or"
                " training.weight_decay",
                "training.learning_rate",
            )
        if "lora_B" in name:
            written = max(written, tensor.abs().max().item())
    if not tensors:
        raise TrainerError("no weights were written")
    if _is_adapter(model) and not written:
        _explain_zero(model, report)


def _explain_zero(model: Any, report: Reporter) -> None:
    trained = [p for name, p in model.named_parameters() if "lora_B" in name]
    if any(parameter.detach().any() for parameter in trained):
        raise TrainerError("the written adapter is all zero, but the trained one is not")
    report.warn(
        "adapter_unchanged",
        "the adapter is all zero: training changed nothing (too few steps, or a learning rate of"
        " 0 in all of them)",
    )


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a mapping
                yield name, file.get_tensor(name)


def _name_base(path: Path, loaded: Loaded) -> None:
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = loaded.reference
    config["revision"] = loaded.facts.get("revision")
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def _is_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config")


def _config_of(model: Any) -> Any:
    return model.get_base_model().config if _is_adapter(model) else model.config


def _needed_bytes(model: Any, spec: TrainSpec) -> int:
    adapter_only = _is_adapter(model) and spec.publish.merge != "always"
    return sum(
        p.numel() * p.element_size()
        for p in model.parameters()
        if p.requires_grad or not adapter_only
    )
