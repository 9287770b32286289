"""What backends hand to tasks: the loaded model, the data and the loop's hooks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer_core.spec import ModelRef, TrainSpec

if TYPE_CHECKING:
    from trainer_core.adapter_init import InitialWeights
    from trainer_core.callbacks import Flow
    from trainer_core.checkpoints import Checkpointer
    from trainer_core.data.prepared import Prepared


@dataclass(frozen=True)
class Loaded:
    """A model ready to train, its tokenizer (None: it reads no text), and what else reads rows.

    `processor` is a processor of Transformers for models that see images, else None.

    `reference` names the base model in what is published: a repository id or a path.
    `facts` are what the run lock records about it (config hash, revision, dtype, parameters).
    `initial` is what the adapter's beginning took out of the base. `unpacked` loads the base once
    more without quantization, where it has one.
    """

    model: Any
    tokenizer: Any
    reference: str
    facts: dict[str, Any]
    initial: "InitialWeights | None" = None
    unpacked: Callable[[], Any] | None = None
    processor: Any | None = None

    @property
    def reader(self) -> Any:
        """What is published beside the model, so that it can read."""
        return self.tokenizer if self.processor is None else self.processor


def transformer_of(model: Any) -> Any:
    """The Transformers (or PEFT) model of what is trained: itself, or what is inside of it."""
    return getattr(model, "transformers_model", model)


@dataclass(frozen=True)
class TrainContext:
    """Everything that a task needs to build its trainer.

    `spec` is resolved; `use_cpu` says that no CUDA device was given to the run. `load_frozen` loads
    a further model of the task's kind that is not trained, such as a reference; `load_judge` a
    model that judges answers (`trainer_core.reward_model.JudgingModel`).
    """

    spec: TrainSpec
    loaded: Loaded
    data: "Prepared"
    use_cpu: bool
    flow: "Flow"
    checkpointer: "Checkpointer"
    load_frozen: Callable[[ModelRef], Any] | None = None
    load_judge: Callable[[ModelRef], Any] | None = None
