"""Rules about adapters, quantization, new tokens, optimizers and schedules that hold for every task
type."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import AdaLoraAdapter, Ia3Adapter, LoraAdapter, TrainSpec
from trainer_core.task import task_of

_ADAM_FIELDS = ("adam_beta1", "adam_beta2", "adam_epsilon")
_WITHOUT_ADAM = ("adafactor", "sgd")
_FIELDS_OF_4_BITS = ("quant_type", "double_quant", "compute_dtype")
_INIT = "/adapter/init_lora_weights"


def _ranks(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """AdaLoRA whose ranks have no room or no steps to fall."""
    adapter = spec.adapter
    if not isinstance(adapter, AdaLoraAdapter):
        return
    if adapter.target_r >= adapter.init_r:
        text = (
            f"adapter.target_r is {adapter.target_r}, but ranks only fall from adapter.init_r,"
            f" which is {adapter.init_r}: raise init_r or lower target_r"
        )
        yield Problem(pointer="/adapter/target_r", message=text, value=repr(adapter.target_r))
    if adapter.tinit < 1 and adapter.tfinal < 1 and adapter.tinit + adapter.tfinal >= 1:
        text = (
            f"adapter.tinit ({adapter.tinit:g}) and adapter.tfinal ({adapter.tfinal:g}) are shares"
            " of all steps and leave none to move ranks: lower them"
        )
        yield Problem(pointer="/adapter/tfinal", message=text, value=repr(adapter.tfinal))


def _factors(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """IA3's `feedforward_modules` that are not among its `target_modules`."""
    adapter = spec.adapter
    if not isinstance(adapter, Ia3Adapter) or adapter.feedforward_modules is None:
        return
    targets = adapter.target_modules
    if targets is None:
        text = "adapter.feedforward_modules needs adapter.target_modules that hold them: name both"
        yield Problem(pointer="/adapter/feedforward_modules", message=text, value="a list")
    elif targets != "all-linear" and (beyond := set(adapter.feedforward_modules) - {*targets}):
        text = (
            f"adapter.feedforward_modules names '{min(beyond)}', which adapter.target_modules does"
            " not: add it there"
        )
        yield Problem(pointer="/adapter/feedforward_modules", message=text, value="a list")


def _beginning(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Beginnings of LoRA that do not go with DoRA, an odd rank, or how the base is held."""
    adapter = spec.adapter
    if not isinstance(adapter, LoraAdapter):
        return
    init = adapter.init_lora_weights
    shown = repr(init)
    if adapter.use_dora and adapter.changes_base:
        text = (
            f"adapter.init_lora_weights is {shown}, which cannot be published for the unchanged"
            " base together with DoRA's magnitudes: set adapter.use_dora to false or use true"
        )
        yield Problem(pointer=_INIT, message=text, value=shown)
    if init == "orthogonal" and adapter.r % 2:
        text = f"adapter.init_lora_weights is 'orthogonal', which needs an even r, not {adapter.r}"
        yield Problem(pointer="/adapter/r", message=text, value=repr(adapter.r))
    if init == "loftq" and (spec.quantization is None or spec.quantization.bits == 8):
        text = (
            "adapter.init_lora_weights is 'loftq', which makes up for the error of a base in 4"
            " bits: set quantization.bits to 4, or use true"
        )
        yield Problem(pointer=_INIT, message=text, value=shown)
    if spec.quantization is not None and (adapter.changes_base or init == "orthogonal"):
        text = (
            f"adapter.init_lora_weights is {shown}, which needs the base's weights whole: leave"
            " quantization out, or use true, 'gaussian', 'eva' or 'loftq'"
        )
        yield Problem(pointer=_INIT, message=text, value=shown)


def _quantized(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Fields of 4 bits with 8, and quantization of a model that begins at random."""
    wanted = spec.quantization
    if wanted is None:
        return
    if wanted.bits == 8:
        for name in _FIELDS_OF_4_BITS:
            if _differs(wanted, name):
                text = f"quantization.{name} has no effect with 8 bits: leave it out"
                shown = repr(getattr(wanted, name))
                yield Problem(pointer=f"/quantization/{name}", message=text, value=shown)
    if task_of(spec).FACTS.model.from_config(spec) is not None:
        text = "quantization has no effect on a model that begins at random: leave it out"
        yield Problem(pointer="/quantization", message=text, value="an object")


def _tokens(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A new token that is to be an ordinary and a special one."""
    twice = set(spec.model.add_tokens) & set(spec.model.add_special_tokens)
    if twice:
        text = (
            f"model.add_special_tokens and model.add_tokens both have '{min(twice)}': keep it in"
            " one of them"
        )
        yield Problem(pointer="/model/add_special_tokens", message=text, value="a list")


def _optimizer(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Adam's fields with an optimizer that is none of its family."""
    training = spec.training
    if training.optim not in _WITHOUT_ADAM:
        return
    for name in _ADAM_FIELDS:
        if _differs(training, name):
            text = f"training.{name} has no effect with optim '{training.optim}': leave it out"
            shown = repr(getattr(training, name))
            yield Problem(pointer=f"/training/{name}", message=text, value=shown)


def _warmup(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Warm-up steps of a schedule that has none; 0 is what it does."""
    training = spec.training
    warms_up = training.warmup_steps > 0 and _differs(training, "warmup_steps")
    if training.lr_scheduler_type == "constant" and warms_up:
        text = (
            "training.warmup_steps has no effect with lr_scheduler_type 'constant': use"
            " 'constant_with_warmup', or leave it out"
        )
        shown = repr(training.warmup_steps)
        yield Problem(pointer="/training/warmup_steps", message=text, value=shown)


def _differs(block: BaseModel, name: str) -> bool:
    field = type(block).model_fields[name]
    given: Any = getattr(block, name)
    return bool(given != field.get_default(call_default_factory=True))


ADAPTER_RULES: tuple[Callable[[TrainSpec, Hardware | None], Iterator[Problem]], ...] = (
    _ranks,
    _factors,
    _beginning,
    _quantized,
    _tokens,
    _optimizer,
    _warmup,
)
