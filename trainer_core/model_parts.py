"""Parts of vision-language models: what sees, what translates, what reads and writes."""

from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.spec import MultimodalTask

_PROJECTOR = (
    "multi_modal_projector",
    "connector",
    "merger",
    "deepstack_merger_list",
    "aligner",
    "mm_projector",
)
_VISION = ("vision_tower", "vision_model", "visual", "vision_encoder", "vision_embed_tokens")


def frozen_parts(task: MultimodalTask) -> set[str]:
    """Names of the parts that are not trained."""
    wishes = {
        "vision": task.freeze_vision_tower,
        "projector": task.freeze_projector,
        "language": task.freeze_language_model,
    }
    return {part for part, is_frozen in wishes.items() if is_frozen}


def part_of(name: str) -> str:
    """`vision`, `projector` or `language`, by the modules in a parameter's name."""
    modules = name.split(".")
    if any(module in _PROJECTOR for module in modules):
        return "projector"
    return "vision" if any(module in _VISION for module in modules) else "language"


def outside_of(parts: set[str]) -> str | None:
    """A pattern of the modules in those parts, for adapters that pass them by."""
    if not parts:
        return None
    vision, projector = (
        rf"(?:.*\.)?(?:{'|'.join(names)})(?:\..*)?" for names in (_VISION, _PROJECTOR)
    )
    patterns = {
        "projector": projector,
        "vision": rf"(?!{projector}$){vision}",
        "language": rf"(?!{projector}$)(?!{vision}$).*",
    }
    return "|".join(f"(?:{patterns[part]})" for part in sorted(parts))


def freeze(model: Any, parts: set[str]) -> None:
    """Leave parts as they are; raises InvalidSpec for a model in which nothing is known to see."""
    found = {part_of(name) for name, _ in model.named_parameters()}
    if "vision" not in found:
        raise InvalidSpec(
            f"it cannot be told which part of {type(model).__name__} sees: none of its modules is "
            f"called {', '.join(_VISION)}; use another vision-language model",
            "model.name_or_path",
        )
    for name, parameter in model.named_parameters():
        if part_of(name) in parts:
            parameter.requires_grad_(False)
