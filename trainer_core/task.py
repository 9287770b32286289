"""Task types: what is learned. The table of them is `TASKS`."""

import sys
from collections.abc import Iterator
from typing import Any, Protocol, cast, get_args

from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import EvaluationTask, TrainSpec
from trainer_core.spec.task import Trained
from trainer_core.task_facts import TaskFacts
from trainer_core.tasks import (
    clm,
    dpo,
    evaluation,
    grpo,
    image_classification,
    kto,
    mlm,
    multimodal,
    sentence_transformer,
    sft,
    text_classification,
)


class Task(Protocol):
    """One task type: a module of this shape, light at import, or the file of its block."""

    FACTS: TaskFacts

    def open_fields(self, spec: TrainSpec) -> dict[str, Any]:
        """Values for those fields of its block that a spec leaves open."""

    def problems(self, spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
        """What about its block cannot work, with the way out."""

    def build_trainer(self, context: TrainContext) -> Any:
        """A Trainer of Transformers, TRL or Sentence Transformers with our loop mixed in.

        It is not started; the runner calls its `train`. Raises InvalidSpec and InvalidData.
        """


def _whole_in_one_file() -> dict[str, Task]:
    """The types whose block's file says all the rest as well."""
    found = {}
    for block in get_args(Trained):
        module = sys.modules[block.__module__]
        if hasattr(module, "FACTS"):
            [name] = get_args(block.model_fields["type"].annotation)
            found[name] = cast("Task", module)
    return found


TASKS: dict[str, Task] = {
    "sft": sft,
    "dpo": dpo,
    "grpo": grpo,
    "clm": clm,
    "mlm": mlm,
    "text_classification": text_classification,
    "image_classification": image_classification,
    "multimodal": multimodal,
    "sentence_transformer": sentence_transformer,
    "kto": kto,
    "evaluation": evaluation,
    **_whole_in_one_file(),
}


def evaluated(spec: TrainSpec) -> TrainSpec:
    """The spec of what is evaluated, with that task in its place; any other spec as it is."""
    task = spec.task
    return spec.model_copy(update={"task": task.of}) if isinstance(task, EvaluationTask) else spec


def task_of(spec: TrainSpec) -> Task:
    """The task of a spec; the spec's own validation has refused every other type."""
    return TASKS[spec.task.type]
