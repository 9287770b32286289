"""What a task type says about itself: data that the rest of the trainer asks for.

Nothing here is heavy, so that the service can ask as well, and nothing is imported from the spec:
a task whose block and facts are one file is a part of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from trainer_core.data.prepared import Prepared
    from trainer_core.spec import TaskBlock, TrainSpec

Block = TypeVar("Block", bound="TaskBlock")

OVER_LENGTH = ("error", "truncate_right", "truncate_left", "drop")
"""The policies that every task with texts can follow; `split` is for plain documents alone."""

ADAPTERS: dict[str, str | None] = dict.fromkeys(
    ("none", "lora", "adalora", "ia3", "vera", "layernorm", "freeze")
)
"""Every kind of adapter, none refused; `none` trains every weight."""


TOKENIZER, IMAGE_PROCESSOR, PROCESSOR = "AutoTokenizer", "AutoImageProcessor", "AutoProcessor"
"""What reads texts, images, or both."""


def _nothing(_: TrainSpec, __: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _nothing_more(_: Any, __: Path) -> None:
    return None


def _none(_: TrainSpec) -> int:
    return 0


def _one(_: TrainSpec) -> int:
    return 1


def _not_at_all(_: TrainSpec) -> str:
    return ""


def _unknown(_: Any) -> None:
    return None


def guess_of_token(config: Any) -> float:
    """The loss (nats) of a model that takes every token of its vocabulary for equally likely."""
    return math.log(config.get_text_config().vocab_size)


def guess_of_label(config: Any) -> float | None:
    """The same for labels: one of all, each for itself; None for a number."""
    if config.problem_type == "regression":
        return None
    alone = config.problem_type == "multi_label_classification"
    return math.log(2 if alone else max(2, config.num_labels))


def _every_row_once(spec: TrainSpec, data: Prepared, rows: int) -> int:  # noqa: ARG001 - as tasks do
    return -(-rows // (spec.training.per_device_train_batch_size or 1))


@dataclass(frozen=True)
class ModelKind:
    """How a task's model is loaded.

    `auto_class` is the class of Transformers, `adapter_task` PEFT's task type. With `new_head` the
    weights around the base model may be missing: they begin at random; `replaces_head` says whether
    those of another size are given up too. `options` turns the spec and
    the facts of the prepared data into arguments of `from_pretrained`, such as the label map.
    `reader` is the auto class of what turns rows into the model's inputs; one with new weights and
    without an `adapter_task` has them trained whole beside an adapter where `trains_head` says so.
    `passed_by` is a pattern of modules that adapters leave alone.
    `library` loads what is published; where it is not Transformers, `assemble` makes what is
    trained of the loaded (and adapted) model, its tokenizer, its source and the spec (None: for a
    frozen one), and `complete` writes into a published folder what it has beside a transformer.
    """

    auto_class: str
    what: str
    adapter_task: str | None
    new_head: bool = False
    replaces_head: Callable[[TrainSpec], bool] = lambda _: False
    options: Callable[[TrainSpec, Mapping[str, Any]], dict[str, Any]] = _nothing
    from_config: Callable[[TrainSpec], dict[str, Any] | None] = lambda _: None
    reader: str = TOKENIZER
    trains_head: bool = False
    passed_by: Callable[[TrainSpec], str | None] = lambda _: None
    framework: str = "transformers"
    assemble: Callable[[Any, Any, Any, TrainSpec | None], Any] | None = None
    complete: Callable[[Any, Path], None] = _nothing_more

    @property
    def sees_images(self) -> bool:
        """Whether its rows hold images."""
        return self.reader != TOKENIZER

    @property
    def keeps_labels(self) -> bool:
        """Whether its configuration holds what the data decide, such as the label map."""
        return self.options is not _nothing


@dataclass(frozen=True)
class Defaults:
    """What `resolve` fills in.

    `scratch_learning_rate` is for models that begin at random (`ModelKind.from_config`);
    `sequences` counts the token sequences of one row. A task that does not accumulate makes a step
    of one batch unless a spec says else, because losses compare the rows of a batch.
    """

    learning_rate: float
    adapter_learning_rate: float
    max_length: int
    scratch_learning_rate: float = 5e-4
    num_train_epochs: float = 3.0
    samples_per_step: int = 16
    lr_scheduler_type: str = "cosine"
    sequences: int = 1
    accumulates: bool = True
    over_length: str = "error"


@dataclass(frozen=True)
class CardText:
    """The model card's words: `made_by` completes "A full fine-tuning of X, made by …"."""

    pipeline_tag: str
    made_by: str
    results: Mapping[str, str]


@dataclass(frozen=True)
class TaskFacts:
    """One task type.

    `formats`   row formats that it takes, keys of `trainer_core.data.formats.FORMATS`
    `rows`      how rows are encoded, a key of `trainer_core.data.encoders.ENCODERS`
    `adapters`  adapter type (`none`: every weight) → why it is refused, None where it works
    `metrics`   names of what it measures beside the loss, without `eval_`
    `step_multiple`  the rows of a step are a multiple of it
    `batches`   micro-batches of an epoch over all processes, of so many rows like the prepared ones
                (default: every row comes once)
    `ddp`       why it cannot be spread over processes, None where it can
    `frozen_copies`  models of the same size that a spec keeps beside the trained one
    `trains`    whether weights change
    `loss_falls`  whether a lower loss is a better one
    `guess`     the loss (nats) of who guesses, from the model's configuration; None: not known
    `streams`   whether its rows may be prepared without those that follow
    `joins`     by which field a spec has samples joined into one stream that is cut into full rows,
                so that none is too long, and the way out; empty where none are
    """

    formats: tuple[str, ...]
    rows: str
    model: ModelKind
    defaults: Defaults
    card: CardText
    adapters: Mapping[str, str | None] = field(default_factory=lambda: ADAPTERS)
    metrics: tuple[str, ...] = ()
    over_length: tuple[str, ...] = OVER_LENGTH
    frozen_copies: Callable[[TrainSpec], int] = _none
    step_multiple: Callable[[TrainSpec], int] = _one
    batches: Callable[[TrainSpec, Prepared, int], int] = _every_row_once
    ddp: str | None = None
    trains: bool = True
    loss_falls: bool = True
    guess: Callable[[Any], float | None] = _unknown
    streams: bool = False
    joins: Callable[[TrainSpec], str] = _not_at_all


def block_of(spec: TrainSpec, kind: type[Block]) -> Block:
    """The spec's task block as the kind that a task's own code knows it to be."""
    if not isinstance(spec.task, kind):
        raise TypeError(f"{kind.__name__} expected, not {type(spec.task).__name__}")
    return spec.task
