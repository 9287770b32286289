"""Memory that ran out in the middle of a step: what is freed, and what is still whole."""

import gc
import random
import traceback
from pathlib import Path
from typing import Any

WHERE = {
    "training": "in the step",
    "evaluating": "in the evaluation",
    "optimizer": "in the optimizer's step",
}
_MARKS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that device or host memory is exhausted.

    torch.OutOfMemoryError is a RuntimeError, and so is what its CPU allocator raises.
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error).lower() for m in _MARKS)


def first_line(error: BaseException) -> str:
    """What the error says, in short."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class RandomState:
    """The state of every random generator that a step draws from, as it is now."""

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415 - heavy: the service imports tasks, and these this
        import torch

        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        """As it was then."""
        import numpy as np  # noqa: PLC0415
        import torch

        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class MemoryRanOut(Exception):
    """Training stopped for lack of memory; what it had finished is saved.

    `where` is a key of `WHERE`, `newest` the newest checkpoint that was written here, if any.
    """

    def __init__(self, where: str, step: int, said: str) -> None:
        super().__init__(said)
        self.where = where
        self.step = step
        self.said = said
        self.newest: Path | None = None


def free(error: BaseException) -> None:
    """Give back what the failed step held: its frames keep activations alive."""
    pending: BaseException | None = error
    while pending is not None:
        traceback.clear_frames(pending.__traceback__)
        pending = pending.__context__
    give_back()


def give_back() -> None:
    """Collect what nobody holds any more, and return cached device memory."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def empty(model: Any) -> None:
    """Give back a model's weights, whoever still holds the model itself.

    Libraries keep exceptions of what they tried to import, with the frames that ran then.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.new_empty(0)
    give_back()


def save_finished_steps(trainer: Any) -> None:
    """Write a checkpoint of the last finished step, whose weights are untouched by the failed one.

    Nothing where it is saved already, and nothing where the optimizer was in the middle of its
    step: the newest checkpoint is older then.
    """
    flow = trainer.flow
    if flow.where == "optimizer" or flow.step == flow.saved_step:
        return
    trainer.model.zero_grad(set_to_none=True)
    flow.back_to_step_begin()
    trainer._save_checkpoint(trainer.model, None)
