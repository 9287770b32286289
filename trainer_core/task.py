"""Task types: what is learned. The table of them is `TASKS`."""

from typing import Any, Protocol

from trainer_core.context import TrainContext
from trainer_core.spec import TrainSpec
from trainer_core.tasks import sft


class Task(Protocol):
    """One task type: a module with this function is enough."""

    def build_trainer(self, context: TrainContext) -> Any:
        """A Trainer of Transformers, TRL or Sentence Transformers with our loop mixed in.

        It is not started; the runner calls its `train`. Raises InvalidSpec and InvalidData.
        """


TASKS: dict[str, Task] = {"sft": sft}


def task_of(spec: TrainSpec) -> Task:
    """The task of a spec; the spec's own validation has refused every other type."""
    return TASKS[spec.task.type]
