"""How runs end: exit code, reason and message for each kind of error."""

import errno
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer_core.errors import DiskFull, Interrupted, InvalidSpec, OutOfMemory, TrainerError
from trainer_core.publish.manifest import write_durably
from trainer_core.shortage import first_line, is_out_of_memory
from trainer_core.words import say, say_traceback

EXIT_FILE = "exit.json"
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True)
class Ending:
    """The end of a run, as `exit.json` says it; code 0 has no reason."""

    code: int
    reason: str | None
    message: str
    retryable: bool

    @classmethod
    def succeeded(cls) -> "Ending":
        """A run that published its model."""
        return cls(0, None, "", retryable=False)

    @property
    def status(self) -> str:
        """succeeded, interrupted or failed."""
        if self.code == 0:
            return "succeeded"
        return "interrupted" if self.code == Interrupted.exit_code else "failed"

    def event(self, step: int) -> dict[str, Any]:
        """Data of the `result` event."""
        return {
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "step": step,
        }


def ending_of(error: BaseException) -> Ending:
    """The ending for an error; an unexpected one leaves its traceback on stderr."""
    known = as_trainer_error(error)
    if known is None:
        say_traceback(error)
        known = TrainerError(f"{type(error).__name__}: {error}")
    # What was read may hold half characters, which no store takes.
    message = message_of(known).encode("utf-8", "backslashreplace").decode()[:_LONGEST_MESSAGE]
    return Ending(known.exit_code, known.reason, message, known.retryable)


def message_of(error: TrainerError) -> str:
    """What is said of an error, with its field named once."""
    if error.field and error.field not in error.message:
        return f"{error.field}: {error.message}"
    return error.message


def as_trainer_error(error: BaseException) -> TrainerError | None:
    """The error by what happened; None for one that nobody expected."""
    if isinstance(error, TrainerError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(
            "memory is exhausted: lower training.per_device_train_batch_size (and raise"
            " training.gradient_accumulation_steps), lower task.max_length, or set"
            f" training.gradient_checkpointing ({first_line(error)})"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left: {error}")
    if isinstance(error, ValidationError):
        return InvalidSpec(str(error))
    if type(error).__name__ == "UnpicklingError":  # its module is one that is not imported here
        return InvalidSpec(
            "a file of the checkpoint or the model holds pickled objects instead of tensors; it "
            "was not loaded: start from another one, or from scratch with checkpoint.resume: never"
        )
    return None


def write_exit(work: Path, ending: Ending) -> None:
    """Write `exit.json`; on a full disk say so on stderr and go on."""
    try:
        write_durably(work / EXIT_FILE, json.dumps(asdict(ending)).encode())
    except OSError as error:
        say(f"{EXIT_FILE} could not be written: {error}")
