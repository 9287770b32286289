"""What a model that is trained on preferences is compared with: rules, models, and their state."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from trainer_core.context import TrainContext
from trainer_core.errors import InvalidSpec
from trainer_core.spec import ModelRef, TrainSpec
from trainer_core.task_facts import ADAPTERS
from trainer_core.task_rules import further_model_problems

_STATE = "reference.safetensors"
COMPARED_ADAPTERS = ADAPTERS | {
    "adalora": "the library compares with a copy of the adapter, and AdaLoRA allows no second one"
}
"""Kinds of adapters for tasks with a reference."""


class Referring(Protocol):
    """The fields that the blocks of such tasks share."""

    @property
    def reference(self) -> str | None:
        """How the reference is made."""

    @property
    def ref_model(self) -> ModelRef | None:
        """Another model than the one that is started from."""

    @property
    def precompute_ref_batch_size(self) -> int | None:
        """Rows at once when its values are computed beforehand."""

    @property
    def sync_ref_model(self) -> bool:
        """Whether it follows the trained model."""

    def differs(self, name: str) -> bool:
        """Whether a field has another value than its default."""


def usual_reference(spec: TrainSpec, ref_model: ModelRef | None) -> str:
    """The reference where a spec says nothing."""
    return "model" if not spec.adapts or ref_model is not None else "adapter_disabled"


def reference_problems(
    task: Referring, reference: str, *, adapted: bool
) -> Iterator[tuple[str, str]]:
    """(field, message) of what cannot work about a task whose reference is `reference`."""
    if reference == "adapter_disabled" and not adapted:
        yield "reference", "is 'adapter_disabled', but there is no adapter: use 'model'"
    if reference == "model" and adapted and task.ref_model is None:
        yield (
            "reference",
            "is 'model', but without its adapter the trained model is that already: use"
            " 'adapter_disabled', or name another model in ref_model",
        )
    if task.precompute_ref_batch_size is not None and reference != "precomputed":
        yield "precompute_ref_batch_size", "needs reference 'precomputed': leave it out"
    if task.sync_ref_model and (reference != "model" or adapted):
        yield "sync_ref_model", "needs reference 'model' and no adapter: leave it out"
    follows = task.differs("ref_model_mixup_alpha") or task.differs("ref_model_sync_steps")
    if follows and not task.sync_ref_model:
        yield "sync_ref_model", "is false, so that how it follows has no effect: set it to true"
    yield from _other_model(task, reference)


def _other_model(task: Referring, reference: str) -> Iterator[tuple[str, str]]:
    model = task.ref_model
    if model is None:
        return
    if reference == "adapter_disabled":
        yield "ref_model", "is not used with reference 'adapter_disabled': leave one of them out"
    yield from further_model_problems("ref_model", model)


def reference_model(context: TrainContext, task: Referring) -> Any:
    """A frozen model beside the trained one, or None where the reference is made otherwise."""
    if task.ref_model is not None and context.load_frozen is not None:
        model = context.load_frozen(task.ref_model)
        known = model.get_input_embeddings().num_embeddings
        if known < len(context.loaded.tokenizer):
            raise InvalidSpec(
                f"task.ref_model knows {known} tokens, the trained model's tokenizer has"
                f" {len(context.loaded.tokenizer)}: the reference must share its tokenizer",
                "task.ref_model",
            )
        model.config.use_cache = False
        return model
    if task.reference == "model":
        return copy.deepcopy(context.loaded.model).requires_grad_(False)
    return None


def settle_reference(trainer: Any, task: Referring) -> None:
    """Take away from a library's trainer what it keeps of a reference without need."""
    if "ref" in getattr(trainer.model, "peft_config", {}):
        trainer.model.delete_adapter("ref")  # a copy of an adapter that does nothing yet
    if task.reference == "precomputed":
        trainer.ref_model = None


class FollowingReference:
    """Mixed into a loop: a reference that follows the model is part of its checkpoints."""

    def save_more(self, folder: Path) -> None:
        """The reference, where it follows the model."""
        from safetensors.torch import save_model

        trainer: Any = self
        if trainer.args.sync_ref_model:
            save_model(trainer.ref_model, folder / _STATE)

    def load_more(self, folder: Path) -> None:
        """The reference as it was."""
        from safetensors.torch import load_model

        trainer: Any = self
        if trainer.args.sync_ref_model:
            load_model(trainer.ref_model, folder / _STATE)
