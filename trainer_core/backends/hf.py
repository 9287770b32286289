"""Transformers and PEFT: every model of the hub with safetensors; full training and LoRA."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_core.context import Loaded
from trainer_core.data.report import TOKENIZER
from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.loading import LoadingWish, load_model, load_tokenizer, model_errors, new_model
from trainer_core.model_source import ModelSource, adapter_base, allowed_folder, locate
from trainer_core.problems import nearest
from trainer_core.publish.manifest import canonical_hash
from trainer_core.spec import LoraAdapter, ModelRef, Paths, TrainSpec
from trainer_core.task import task_of
from trainer_core.task_facts import ModelKind


def load(
    spec: TrainSpec,
    paths: Paths,
    secrets: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
) -> Loaded:
    """Load tokenizer and model, merge a published adapter into its base, attach a new one."""
    from transformers import set_seed

    source = locate(spec.model, paths, secrets)
    tokenizer = load_tokenizer(_tokenizer_source(source, paths))
    kind = task_of(spec).FACTS.model
    wish = LoadingWish(
        kind,
        weights_dtype(spec),
        spec.model.attn_implementation,
        kind.options(spec, facts or {}),
        kind.replaces_head(spec),
        frozen_head=spec.adapter is not None and not spec.adapter.modules_to_save,
    )
    set_seed(spec.training.seed)  # a new head begins at random
    model = _load_model(spec, (source, tokenizer), paths, wish)
    described = _facts(model)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise InvalidSpec(
            f"the tokenizer of '{source.reference}' has {len(tokenizer)} tokens, its model"
            f" {model.get_input_embeddings().num_embeddings}: they do not belong together",
            "model.name_or_path",
        )
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    set_seed(spec.training.seed)
    if spec.adapter is not None:
        model = _attach(model, spec.adapter, kind)
    _require_fp32_trainables(model, spec)
    if kind.assemble is not None:
        model = kind.assemble(model, tokenizer, source, spec)
    return Loaded(model, tokenizer, source.reference, described)


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
    model = load_model(_base_source(*base, paths), wish)
    with model_errors(source, "adapter"):
        adapted = PeftModel.from_pretrained(model, source.path)
    merged = adapted.merge_and_unload()
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


def _base_source(name: str, revision: str | None, paths: Paths) -> ModelSource:
    if Path(name).is_dir():
        return ModelSource(str(allowed_folder(name, paths.model_folders)), name)
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
    return names["fp32" if spec.adapter is None and not frozen else spec.precision]


def _attach(model: Any, adapter: LoraAdapter, kind: ModelKind) -> Any:
    from peft import LoraConfig, get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    if adapter.target_modules != "all-linear":
        _require_modules(model, "target_modules", adapter.target_modules)
    _require_modules(model, "modules_to_save", adapter.modules_to_save)
    config = LoraConfig(
        task_type=kind.adapter_task,
        r=adapter.r,
        lora_alpha=adapter.lora_alpha,
        lora_dropout=adapter.lora_dropout,
        target_modules=adapter.target_modules,
        modules_to_save=adapter.modules_to_save or None,
        use_rslora=adapter.use_rslora,
        bias=adapter.bias,
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise InvalidSpec(
            f"the adapter does not fit this model: {error}", "adapter.target_modules"
        ) from error
    if isinstance(adapted.get_output_embeddings(), BaseTunerLayer):
        raise InvalidSpec(
            "an adapter on the output head would never be trained: take it out of"
            " adapter.target_modules, or put it into adapter.modules_to_save",
            "adapter.target_modules",
        )
    # Without a name PEFT asks no hub about the base at every save; publishing writes it.
    adapted.peft_config["default"].base_model_name_or_path = None
    return adapted


def _require_modules(model: Any, field: str, names: Sequence[str]) -> None:
    """PEFT passes over a name that no module has, as long as another one fits."""
    modules = {name for name, _ in model.named_modules() if name}
    last = {name.rpartition(".")[2] for name in modules}
    for name in names:
        if not any(module == name or module.endswith(f".{name}") for module in modules):
            close = nearest(name, sorted(last))
            known = f"did you mean '{close}'?" if close else f"it has {', '.join(sorted(last))}"
            raise InvalidSpec(
                f"adapter.{field} names '{name}', but the model has no such module: {known}",
                f"adapter.{field}",
            )


def _require_fp32_trainables(model: Any, spec: TrainSpec) -> None:
    """Half-precision gradients cannot be unscaled: cast what is trained to fp32 under fp16."""
    import torch

    if spec.precision != "fp16":
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
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
