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
from trainer_core.memory import DTYPE_BYTES
from trainer_core.publish.adapter import finish_adapter, is_untrained, save_model_config
from trainer_core.publish.card import CardFacts, model_card
from trainer_core.publish.hub_files import RUN_LOCK
from trainer_core.publish.manifest import Manifest, make_durable, sync_folder, write_manifest
from trainer_core.publish.merge import merge
from trainer_core.report import Reporter
from trainer_core.shortage import first_line, is_out_of_memory
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

FOLDER = "model"
STAGING = ".model.writing"


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
    _save(model, folder)
    if _is_adapter(model):
        finish_adapter(folder, loaded)
        if task_of(publication.spec).FACTS.model.new_head:
            save_model_config(model, folder)  # the label map
        if publication.spec.publish.merge == "always":
            model, card = _merge_if_true(folder, model, loaded, publication, report)
    loaded.reader.save_pretrained(folder)
    publication.complete(folder)
    check_weights(folder, model, report)
    (folder / "README.md").write_text(model_card(publication.spec, card))
    (folder / RUN_LOCK).write_text(json.dumps(publication.lock, indent=1))
    manifest = write_manifest(folder, "model", card.steps, publication.hashes)
    make_durable(folder)
    return manifest


def _save(model: Any, folder: Path) -> None:
    config = _config_of(model)
    if hasattr(config, "use_cache"):
        config.use_cache = True  # training turned it off; generation wants it
    model.save_pretrained(folder)


def _merge_if_true(
    folder: Path, model: Any, loaded: Loaded, publication: Publication, report: Reporter
) -> tuple[Any, CardFacts]:
    """Put the merged model into `folder` in place of the adapter, if it says the same.

    The adapter stays where memory does not suffice: another attempt would meet the same end.
    """
    check_weights(folder, model, report)
    try:
        merged = merge(model, loaded, folder)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        report.warn(
            "merge_refused",
            f"merging needs more memory than there is ({first_line(error)}): the adapter is"
            " published alone",
        )
        return model, publication.card
    limit = publication.spec.publish.max_merge_drift or merged.limit
    if not merged.drift <= limit:
        report.warn(
            "merge_refused",
            f"merging would change the logits by {merged.drift:.3g} of the largest one, more than"
            f" publish.max_merge_drift allows ({limit:.3g}): the adapter is published alone",
        )
        return model, publication.card
    shutil.rmtree(folder)
    folder.mkdir()
    _save(merged.model, folder)
    report.log(f"merged: logits changed by {merged.drift:.3g} of the largest one")
    drifts = (merged.drift, merged.quantization_drift)
    publication.lock["merge"] = dict(zip(("drift", "quantization_drift"), drifts, strict=True))
    card = replace(
        publication.card, kind="merged", merge_drift=drifts[0], quantization_drift=drifts[1]
    )
    return merged.model, card


def _into_place(staging: Path, folder: Path) -> Path:
    if folder.exists():
        (folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(folder)
    staging.rename(folder)
    sync_folder(folder.parent)
    return folder


def check_weights(folder: Path, model: Any, report: Reporter) -> None:
    """Reopen what was written: something, finite, and an adapter that is no longer as it began.

    Raises TrainerError, and Diverged for what training broke. An adapter that training left as it
    was is written rightly: a warning.
    """
    tensors = 0
    for name, tensor in _tensors(folder):
        tensors += 1
        if not tensor.numel() and not _may_be_empty(model):
            raise TrainerError(f"the written weights are not usable: {name} is empty")
        if not tensor.isfinite().all():
            raise Diverged(
                f"the trained weights are not finite ({name}): lower training.learning_rate or"
                " training.weight_decay",
                "training.learning_rate",
            )
    if not tensors:
        raise TrainerError("no weights were written")
    if _is_adapter(model):
        _explain_untrained(folder, model, report)


def _explain_untrained(folder: Path, model: Any, report: Reporter) -> None:
    from peft import get_peft_model_state_dict

    kind = model.peft_config["default"].peft_type.value
    if not is_untrained(dict(_tensors(folder)), kind):
        return
    if is_untrained(get_peft_model_state_dict(model), kind) is False:
        raise TrainerError("the written adapter is untrained, but the one in memory is not")
    report.warn(
        "adapter_unchanged",
        "the adapter is as it began: training changed nothing (too few steps, or a learning rate"
        " of 0 in all of them)",
    )


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a mapping
                yield name, file.get_tensor(name)


def _may_be_empty(model: Any) -> bool:
    """AdaLoRA takes the ranks of some layers away altogether."""
    return _is_adapter(model) and bool(getattr(model.peft_config["default"], "rank_pattern", None))


def _is_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config")


def _config_of(model: Any) -> Any:
    return model.get_base_model().config if _is_adapter(model) else model.config


def _needed_bytes(model: Any, spec: TrainSpec) -> int:
    adapter_only = _is_adapter(model) and spec.publish.merge != "always"
    if spec.quantization is not None and not adapter_only:
        return int(model.get_base_model().num_parameters() * DTYPE_BYTES[spec.model.dtype])
    return sum(
        p.numel() * p.element_size()
        for p in model.parameters()
        if p.requires_grad or not adapter_only
    )
