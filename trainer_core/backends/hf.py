"""Transformers and PEFT: every model of the hub with safetensors, whole or under an adapter."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.adapter_init import Calibration
from trainer_core.adapters import attach, left_whole
from trainer_core.context import Loaded
from trainer_core.data.prepared import open_prepared
from trainer_core.data.report import TOKENIZER
from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.loading import (
    LoadingWish,
    files_of,
    load_model,
    load_reader,
    load_tokenizer,
    model_errors,
    new_model,
    require_labels,
    skeleton,
)
from trainer_core.model_source import ModelSource, adapter_base, allowed_folder, locate
from trainer_core.moved import present_place
from trainer_core.new_tokens import fit_embeddings, with_new_tokens
from trainer_core.publish.manifest import canonical_hash
from trainer_core.publish.merge import unload_merged
from trainer_core.quantization import keep_as_loaded, quantized_loading
from trainer_core.reward_model import KIND, JudgingModel
from trainer_core.spec import LoraAdapter, ModelRef, Paths, TrainSpec
from trainer_core.task import task_of

PACKAGES: tuple[str, ...] = ("torch", "transformers", "accelerate", "datasets", "peft", "trl")


def load(
    spec: TrainSpec,
    paths: Paths,
    secrets: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
    *,
    whole: bool = False,
) -> Loaded:
    """Load tokenizer and model, merge a published adapter into its base, attach a new one."""
    from transformers import set_seed

    source = locate(spec.model, paths, secrets)
    kind = task_of(spec).FACTS.model
    tokenizer, processor = load_reader(kind, _tokenizer_source(source, paths))
    tokenizer = with_new_tokens(tokenizer, spec.model)
    wish = LoadingWish(
        kind,
        weights_dtype(spec),
        spec.model.attn_implementation,
        kind.options(spec, facts or {}),
        kind.replaces_head(spec),
        frozen_head=spec.adapts and not getattr(spec.adapter, "modules_to_save", None),
        whole=whole,
    )
    if whole and kind.keeps_labels:
        require_labels(source, wish.options)

    def base(wish: LoadingWish) -> Any:
        set_seed(spec.training.seed)  # a new head and new tokens begin at random
        model = _load_model(spec, (source, tokenizer), paths, wish)
        if tokenizer is not None:
            grows = bool(spec.model.new_tokens)
            fit_embeddings(model, tokenizer, source.reference, grows=grows)
        if hasattr(model.config, "use_cache"):
            model.config.use_cache = False
        return model

    packed = quantized_loading(spec, _left_whole(spec, source, wish))
    model = base(replace(wish, options=wish.options | packed))
    keep_as_loaded(model)
    described = _facts(model)
    set_seed(spec.training.seed)
    model, initial = attach(model, spec, kind, _calibration(spec, source, paths))
    _require_fp32_trainables(model, spec)
    if kind.assemble is not None:
        model = kind.assemble(model, tokenizer, source, spec)
    unpacked = partial(base, wish) if packed else None
    return Loaded(model, tokenizer, source.reference, described, initial, unpacked, processor)


def _left_whole(spec: TrainSpec, source: ModelSource, wish: LoadingWish) -> list[str]:
    """Modules that are not packed; the library would pack heads that have a bias."""
    adapted = source.is_folder and adapter_base(Path(source.path)) is not None
    if spec.quantization is None or adapted:  # the last is refused with its reason
        return []
    return left_whole(skeleton(source, wish), spec, wish.kind)


def _calibration(spec: TrainSpec, source: ModelSource, paths: Paths) -> Calibration | None:
    """What an initialisation looks at, for those that do."""
    adapter = spec.adapter
    if not isinstance(adapter, LoraAdapter) or paths.prepared is None:
        return None
    if adapter.init_lora_weights not in ("eva", "corda", "loftq"):
        return None
    return Calibration(open_prepared(Path(paths.prepared)).train, files_of(source))


def _tokenizer_source(source: ModelSource, paths: Paths) -> ModelSource:
    """The tokenizer that was trained for the prepared data, else the model's own."""
    trained = Path(paths.prepared or "") / TOKENIZER
    if paths.prepared is None or not trained.is_dir():
        return source
    return ModelSource(str(trained), source.reference)


def _load_model(
    spec: TrainSpec, found: tuple[ModelSource, Any], paths: Paths, wish: LoadingWish
) -> Any:
    source, tokenizer = found
    config = wish.kind.from_config(spec)
    if config is not None:
        return new_model(source, config, wish, tokenizer)
    base = adapter_base(Path(source.path)) if source.is_folder else None
    if base is None:
        return load_model(source, wish)
    from peft import PeftModel
    from peft.utils import SAFETENSORS_WEIGHTS_NAME

    if not (Path(source.path) / SAFETENSORS_WEIGHTS_NAME).is_file():
        raise ModelUnavailable(
            f"the adapter '{source.reference}' has no {SAFETENSORS_WEIGHTS_NAME}: it must hold its"
            " weights as safetensors",
            "model.name_or_path",
        )
    if "quantization_config" in wish.options:
        raise InvalidSpec(
            f"'{source.reference}' is an adapter, and merging it into a quantized base would spoil"
            " it: publish it with publish.merge 'always' and start from that, or leave"
            " quantization out",
            "quantization",
        )
    model = load_model(_base_source(*base, paths), wish)
    if tokenizer is not None:
        fit_embeddings(model, tokenizer, source.reference, grows=True)  # an adapter brings rows
    with model_errors(source, "adapter"):
        adapted = PeftModel.from_pretrained(model, source.path)
    merged = unload_merged(adapted)
    merged.requires_grad_(True)
    return merged


def load_frozen(spec: TrainSpec, ref: ModelRef, paths: Paths, secrets: Mapping[str, str]) -> Any:
    """A whole model beside the trained one; an adapter is refused."""
    source = locate(ref, paths.model_copy(update={"model": None}), secrets)
    dtype = weights_dtype(spec.model_copy(update={"model": ref}), frozen=True)
    kind = task_of(spec).FACTS.model
    model = load_model(source, LoadingWish(kind, dtype, ref.attn_implementation))
    if kind.assemble is not None:
        model = kind.assemble(model, load_tokenizer(source), source, None)
    return model.requires_grad_(False)


def load_judge(spec: TrainSpec, ref: ModelRef, paths: Paths) -> JudgingModel:
    """A reward model beside the trained one, with its own tokenizer."""
    source = locate(ref, paths.model_copy(update={"model": None}), {})
    dtype = weights_dtype(spec.model_copy(update={"model": ref}), frozen=True)
    wish = LoadingWish(KIND, dtype, ref.attn_implementation)
    model = load_model(source, wish).requires_grad_(False)
    return JudgingModel(model, load_tokenizer(source), ref.name_or_path)


def _base_source(name: str, revision: str | None, paths: Paths) -> ModelSource:
    if Path(present_place(name, paths.moved)).is_dir():
        return ModelSource(str(allowed_folder(name, paths)), name)
    return ModelSource(name, name, {"revision": revision} if revision else {})


def weights_dtype(spec: TrainSpec, *, frozen: bool = False) -> Any:
    """The dtype that weights are loaded in.

    Trained weights stay fp32 (mixed precision casts on the fly); a frozen base is held in the
    run's own precision.
    """
    import torch

    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if spec.model.dtype != "auto":
        return names[spec.model.dtype]
    return names[spec.precision if spec.adapts or frozen else "fp32"]


def _require_fp32_trainables(model: Any, spec: TrainSpec) -> None:
    """Gradients in fp16 cannot be unscaled, and many steps of AdamW are too small for bf16.

    Who trains whole weights in bf16 (`model.dtype`) has asked for it.
    """
    import torch

    if spec.precision != "fp16" and not spec.adapts:
        return
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.to(torch.float32)


def _facts(model: Any) -> dict[str, Any]:
    config = model.config.to_dict()
    return {
        "architecture": type(model).__name__,
        "config_hash": canonical_hash(_plain(config)),
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attn_implementation": model.config._attn_implementation,
        "parameters": model.num_parameters(),  # those in 4 bits are two in a byte
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
