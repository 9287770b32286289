"""Errors of the trainer, grouped by what happened.

    TrainerError                 the job's owner must act
    ├── InvalidSpec              a field, or a combination of fields, cannot work
    ├── InvalidData              a data source cannot be read as what it should be
    ├── DataUnavailable          a data source cannot be reached (retryable)
    ├── ModelUnavailable         a model or tokenizer cannot be found or reached
    ├── OutOfMemory              device or host memory is exhausted
    ├── Diverged                 the loss is not a finite number, or training comes to nothing
    ├── Stalled                  steps have become too slow on this machine (retryable)
    ├── BelowGate                the model does not reach `publish.gate`
    ├── DiskFull                 no room for a checkpoint or the model
    ├── RankLost                 a process of several that train together is dead (retryable)
    └── Interrupted              SIGTERM: a whole checkpoint was written, go on later

Every class pickles: it carries only its message and its field.
"""

from typing import ClassVar


class TrainerError(Exception):
    """A run that cannot go on: `reason` and `exit_code` for machines, a message for people."""

    reason: ClassVar[str] = "trainer_error"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def __reduce__(self) -> tuple[type, tuple[str, str | None]]:
        return type(self), (self.message, self.field)


class InvalidSpec(TrainerError):
    """A field, or a combination of fields, cannot work."""

    reason = "invalid_spec"
    exit_code = 64


class InvalidData(TrainerError):
    """A data source cannot be read; the message names source, line and way out."""

    reason = "invalid_data"
    exit_code = 64


class DataUnavailable(TrainerError):
    """A data source cannot be reached."""

    reason = "data_unavailable"
    exit_code = 64
    retryable = True


class ModelUnavailable(TrainerError):
    """A model or tokenizer cannot be found or reached."""

    reason = "model_unavailable"
    exit_code = 64


class OutOfMemory(TrainerError):
    """Device or host memory is exhausted."""

    reason = "out_of_memory"
    exit_code = 71


class Diverged(TrainerError):
    """The loss is not a finite number, or has risen for good, or does not depend on any weight."""

    reason = "diverged"
    exit_code = 72


class Stalled(TrainerError):
    """Steps have become much slower than they were, for long."""

    reason = "stalled"
    retryable = True


class BelowGate(TrainerError):
    """The trained model does not reach what it must to be published."""

    reason = "below_gate"
    exit_code = 76


class RankLost(TrainerError):
    """One of several processes that train together is dead, so that the others were ended."""

    reason = "killed"
    retryable = True


class DiskFull(TrainerError):
    """No room for a checkpoint or the model."""

    reason = "disk_full"
    exit_code = 73


class Interrupted(TrainerError):
    """The run was asked to stop and can go on later from its newest checkpoint."""

    reason = "interrupted"
    exit_code = 75
    retryable = True
