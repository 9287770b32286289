"""The table of task types: `task` is one of these blocks, told apart by its `type`."""

from trainer_core.spec.tasks.sft import SftTask

TaskSpec = SftTask
