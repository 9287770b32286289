"""Rules that several task types share; each task names those that hold for it."""

from collections.abc import Iterator
from typing import Any

from trainer_core.data.named_templates import NAMED, WORDS
from trainer_core.problems import Problem
from trainer_core.spec import DataSource, LoraAdapter, ModelRef, TrainSpec


def template_problem(template: str) -> Iterator[Problem]:
    """A `task.chat_template` that is neither a known word nor a Jinja template."""
    if template not in WORDS and "{{" not in template and "{%" not in template:
        shown = repr(template[:60])
        text = (
            f"task.chat_template is {shown}, which is neither 'auto', 'tokenizer', a name "
            f"({', '.join(NAMED)}) nor a Jinja template: give one of these"
        )
        yield Problem(pointer="/task/chat_template", message=text, value=shown)


def further_model_problems(field: str, model: ModelRef) -> Iterator[tuple[str, str]]:
    """(field, message) of what a model beside the trained one cannot be; `field` names it."""
    if model.source not in ("hub", "folder"):
        text = "which is for the trained model alone: use 'hub' or 'folder'"
        yield f"{field}/source", f"is '{model.source}', {text}"
    if model.token is not None:
        yield f"{field}/token", "is for the trained model alone: use a public one, or a folder"
    if model.source == "folder" and model.revision is not None:
        yield f"{field}/revision", "has no effect with source 'folder': leave it out"
    for name in ("add_tokens", "add_special_tokens"):
        if getattr(model, name):
            yield f"{field}/{name}", "has no effect on a model that is not trained: leave it out"


_CODE = ("auto_map", "custom_pipelines")


def from_config_problems(spec: TrainSpec, config: dict[str, Any] | None) -> Iterator[Problem]:
    """A model that begins at random under an adapter, and configurations that name code."""
    if spec.adapter is not None and config is not None:
        text = "task.from_config begins at random, which an adapter cannot mend: leave adapter out"
        yield Problem(pointer="/adapter", message=text, value="an object")
    for name in _CODE:
        if name in (config or {}):
            text = f"task.from_config.{name} would run code of a model's own: take it out"
            yield Problem(pointer=f"/task/from_config/{name}", message=text)


def lasting_base_problems(
    spec: TrainSpec, otherwise: str = "name a model in task.ref_model"
) -> Iterator[Problem]:
    """Beginnings of LoRA after which switching the adapter off does not give the base back."""
    adapter = spec.adapter
    if isinstance(adapter, LoraAdapter) and adapter.changes_base:
        text = (
            f"adapter.init_lora_weights is '{adapter.init_lora_weights}', which moves a part of the"
            " base into the adapter, so the model without its adapter is no reference: use another"
            f" one, or {otherwise}"
        )
        shown = repr(adapter.init_lora_weights)
        yield Problem(pointer="/adapter/init_lora_weights", message=text, value=shown)
    if isinstance(adapter, LoraAdapter) and adapter.bias != "none":
        text = (
            f"adapter.bias is '{adapter.bias}', and trained biases stay when the adapter is"
            f" switched off for the reference: use 'none', or {otherwise}"
        )
        yield Problem(pointer="/adapter/bias", message=text, value=repr(adapter.bias))


def sources_with_pointers(spec: TrainSpec) -> Iterator[tuple[str, DataSource]]:
    """Every source with its JSON pointer, training first."""
    parts = {"train": spec.data.train}
    if isinstance(spec.data.validation, list):
        parts["validation"] = spec.data.validation
    for part, sources in parts.items():
        for number, source in enumerate(sources):
            yield f"/data/{part}/{number}", source


def dotted(pointer: str) -> str:
    """A pointer as people write it: `data.train[0].path`."""
    parts = pointer.removeprefix("/").split("/")
    return "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in parts).removeprefix(".")
