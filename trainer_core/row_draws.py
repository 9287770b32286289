"""What is drawn at random for a row, such as its masks: by seed, epoch and row, nothing else.

So no draw depends on the order of batches, on logging, evaluating or saving, or on a resume in
the middle of an epoch; batches that a loader fetches ahead change nothing either.
"""

from typing import Any

DRAW = "draw"
"""The column that a row gets: numbers that seed `generator`."""


class DrawnRows:
    """Rows of a data set, each with what seeds its draws; `epoch` 0 is that of validation rows."""

    def __init__(self, rows: Any, seed: int, epoch: int = 0) -> None:
        self.epoch = epoch
        self._rows = rows
        self._seed = seed

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**self._rows[number], DRAW: (self._seed, self.epoch, number)}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """A callback of the trainer's: count epochs as it does, also after a resume."""
        steps = -(-len(kwargs["train_dataloader"]) // args.gradient_accumulation_steps)
        self.epoch = 1 + state.global_step // steps


def drawn_parts(context: Any) -> tuple[DrawnRows, DrawnRows | None]:
    """Training and validation rows of a run with their draws, by its data seed."""
    training = context.spec.training
    seed = training.seed if training.data_seed is None else training.data_seed
    validation = context.data.validation
    held = None if validation is None else DrawnRows(validation, seed)
    return DrawnRows(context.data.train, seed, epoch=1), held


def follow_epochs(trainer: Any, rows: DrawnRows) -> None:
    """Have a trainer tell the rows which epoch it is."""
    from transformers import TrainerCallback

    hooks = {"on_epoch_begin": rows.on_epoch_begin}
    trainer.add_callback(type("EpochCallback", (TrainerCallback,), hooks)())


def generator(draw: tuple[int, int, int]) -> Any:
    """The random generator of one row in one epoch."""
    import numpy as np  # noqa: PLC0415 - tasks load without it

    return np.random.default_rng(draw)
