"""The blocks of the task types, one a file; `trainer_core.spec.task` has the table of them."""
