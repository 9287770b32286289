"""Whether an adapter is published alone or merged into its base; light, for `resolve`."""

from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_SERVED = ("AutoModelForCausalLM", "AutoModelForImageTextToText")
"""Kinds of models that servers of adapters, such as vLLM, load."""


def not_served(spec: TrainSpec) -> str | None:
    """Why servers refuse the spec's adapter alone; None where nothing is known that they refuse.

    They load low-rank factors, and no whole layers or rows of embeddings beside them
    (vllm-project/vllm#9280).
    """
    if not spec.adapts or task_of(spec).FACTS.model.auto_class not in _SERVED:
        return None
    if modules := getattr(spec.adapter, "modules_to_save", []):
        return f"it holds {', '.join(modules)} whole (adapter.modules_to_save)"
    if spec.model.new_tokens:
        return "it holds rows of its own for the new tokens (model.add_tokens)"
    return None


def usual_merge(spec: TrainSpec) -> str:
    """What `publish.merge: auto` means."""
    return "never" if not_served(spec) is None else "always"
