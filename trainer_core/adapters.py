"""Attaching what is trained to a loaded model: PEFT's adapters, or some of its own parameters."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from trainer_core.adapter_init import Calibration, InitialWeights, prepare_init, refine_init
from trainer_core.errors import InvalidSpec
from trainer_core.loading import is_head
from trainer_core.problems import nearest
from trainer_core.spec import (
    AdaLoraAdapter,
    FreezeAdapter,
    Ia3Adapter,
    LayerNormAdapter,
    LoraAdapter,
    PeftAdapter,
    TrainSpec,
    VeraAdapter,
)
from trainer_core.task_facts import ModelKind


def attach(
    model: Any, spec: TrainSpec, kind: ModelKind, calibration: Calibration | None = None
) -> tuple[Any, InitialWeights | None]:
    """The model as the spec's adapter trains it, and what its beginning took out of the base.

    `calibration` has training rows for the initialisations that look at them. New tokens'
    embeddings are trained with every kind of adapter. Raises InvalidSpec.
    """
    adapter = spec.adapter
    if adapter is None:
        return model, None
    embeddings = embedding_names(model) if spec.model.new_tokens else []
    if isinstance(adapter, FreezeAdapter):
        heads = _heads(model) if kind.new_head else []
        rows = [f"{name}.*" for name in embeddings]
        _freeze(model, [*adapter.trainable_patterns, *rows, *heads])
        return model, None
    _require_known_modules(model, adapter)
    whole = [*embeddings, *(_head_modules(model) if kind.trains_head else [])]
    config = _config(adapter, model, kind, [*adapter.modules_to_save, *whole])
    if (pattern := kind.passed_by(spec)) is not None:
        config.exclude_modules = pattern
    if isinstance(adapter, LoraAdapter):
        prepare_init(model, config, calibration)
    adapted = _adapted(model, config)
    # Without a name PEFT asks no hub about the base at every save; publishing writes it.
    adapted.peft_config["default"].base_model_name_or_path = None
    initial = refine_init(adapted, adapter, calibration)
    return adapted, initial


def _heads(model: Any) -> list[str]:
    """Parameters around the base model, which may begin at random: they are always trained."""
    return [name for name, _ in model.named_parameters() if is_head(model, name)]


def _head_modules(model: Any) -> list[str]:
    """Modules around the base model that hold parameters: PEFT trains and saves them whole.

    Of a pooler inside of the base that module alone.
    """
    inner = f"{model.base_model_prefix}."
    found = (
        f"{name.partition('.pooler.')[0]}.pooler"
        if name.startswith(inner)
        else name.partition(".")[0]
        for name in _heads(model)
    )
    return list(dict.fromkeys(found))


def left_whole(model: Any, spec: TrainSpec, kind: ModelKind) -> list[str]:
    """Modules that a quantized base does not pack: the output embeddings, and what may be trained
    whole beside an adapter, which packed numbers cannot be."""
    output = model.get_output_embeddings()
    outputs = [name for name, module in model.named_modules() if module is output]
    heads = _head_modules(model) if kind.new_head else []
    return [*outputs, *heads, *getattr(spec.adapter, "modules_to_save", [])]


def embedding_names(model: Any) -> list[str]:
    """Names of the modules that hold a row for each token."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    found = {id(layer) for layer in layers if layer is not None}
    return [name for name, module in model.named_modules() if id(module) in found]


def _adapted(model: Any, config: Any) -> Any:
    from peft import get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    try:
        adapted = get_peft_model(model, config)
    except (ValueError, TypeError) as error:
        raise InvalidSpec(
            f"the adapter does not fit this model: {error}", "adapter.target_modules"
        ) from error
    if isinstance(adapted.get_output_embeddings(), BaseTunerLayer):
        raise InvalidSpec(
            "an adapter on the output head would never be trained: take it out of"
            " adapter.target_modules, or put it into adapter.modules_to_save",
            "adapter.target_modules",
        )
    return adapted


def _config(adapter: PeftAdapter, model: Any, kind: ModelKind, saved: list[str]) -> Any:
    make = _CONFIGS[adapter.type]
    return make(adapter, model, {"task_type": kind.adapter_task, "modules_to_save": saved or None})


def _lora(adapter: LoraAdapter, _: Any, shared: Mapping[str, Any]) -> Any:
    from peft import EvaConfig, LoraConfig
    from peft.tuners.lora.config import CordaConfig

    init = adapter.init_lora_weights
    return LoraConfig(
        **shared,
        r=adapter.r,
        lora_alpha=adapter.lora_alpha,
        lora_dropout=adapter.lora_dropout,
        target_modules=adapter.target_modules,
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
        # From the 4-bit error it is made once the adapter is there (`refine_init`).
        init_lora_weights=True if init == "loftq" else init,
        # Ranks stay as they are, so that a checkpoint fits whatever the rows look like.
        eva_config=EvaConfig(rho=1.0) if init == "eva" else None,
        corda_config=CordaConfig() if init == "corda" else None,
        bias=adapter.bias,
    )


def _adalora(adapter: AdaLoraAdapter, _: Any, shared: Mapping[str, Any]) -> Any:
    from peft import AdaLoraConfig

    return AdaLoraConfig(
        **shared,
        init_r=adapter.init_r,
        target_r=adapter.target_r,
        lora_alpha=adapter.lora_alpha,
        lora_dropout=adapter.lora_dropout,
        target_modules=adapter.target_modules,
        deltaT=adapter.delta_t,
        orth_reg_weight=adapter.orth_reg_weight,
        total_step=1,  # `RankBudget` sets it, with tinit and tfinal, when the steps are known
    )


def _ia3(adapter: Ia3Adapter, model: Any, shared: Mapping[str, Any]) -> Any:
    from peft import IA3Config
    from peft.utils import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as KNOWN

    if adapter.target_modules is None and model.config.model_type not in KNOWN:
        raise InvalidSpec(
            f"PEFT knows no modules of a '{model.config.model_type}' for IA3: name those of keys,"
            " values and feed-forward layers in adapter.target_modules",
            "adapter.target_modules",
        )
    inputs = adapter.feedforward_modules
    if inputs is None and adapter.target_modules is not None:
        inputs = []
    return IA3Config(**shared, target_modules=adapter.target_modules, feedforward_modules=inputs)


def _vera(adapter: VeraAdapter, _: Any, shared: Mapping[str, Any]) -> Any:
    from peft import VeraConfig

    return VeraConfig(
        **shared,
        r=adapter.r,
        vera_dropout=adapter.vera_dropout,
        d_initial=adapter.d_initial,
        projection_prng_key=adapter.projection_prng_key,
        target_modules=adapter.target_modules,
    )


def _layernorm(adapter: LayerNormAdapter, model: Any, shared: Mapping[str, Any]) -> Any:
    from peft import LNTuningConfig

    names = adapter.target_modules or _norms(model)
    if not names:
        raise InvalidSpec(
            "this model has no norms: name modules in adapter.target_modules",
            "adapter.target_modules",
        )
    return LNTuningConfig(**shared, target_modules=names)


def _norms(model: Any) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and any(True for _ in module.parameters())
    ]


_CONFIGS: dict[str, Callable[[Any, Any, Mapping[str, Any]], Any]] = {
    "lora": _lora,
    "adalora": _adalora,
    "ia3": _ia3,
    "vera": _vera,
    "layernorm": _layernorm,
}


def _require_known_modules(model: Any, adapter: PeftAdapter) -> None:
    """PEFT passes over a name that no module has, as long as another one fits."""
    for field in ("target_modules", "modules_to_save", "feedforward_modules"):
        names: Sequence[str] | None = getattr(adapter, field, None)
        if names is not None and names != "all-linear":
            _require_modules(model, field, names)


def _require_modules(model: Any, field: str, names: Sequence[str]) -> None:
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


def _freeze(model: Any, patterns: Sequence[str]) -> None:
    """Train the parameters that a pattern fits, and no others; tied ones go together."""
    names = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in _all_names(model)):
            close = nearest(pattern.replace("*", ""), names)
            hint = f"did you mean '{close}'?" if close else f"one is '{next(iter(names))}'"
            raise InvalidSpec(
                f"adapter.trainable_patterns has '{pattern}', which fits no parameter: {hint}",
                "adapter.trainable_patterns",
            )
    model.requires_grad_(False)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(True)


def _all_names(model: Any) -> list[str]:
    return [name for name, _ in model.named_parameters(remove_duplicate=False)]
