"""How much of a stream a run takes, known before any device is."""

import sys
from dataclasses import dataclass

from trainer_core.data.arrow import ArrowWriter
from trainer_core.data.row_encoder import RowEncoder
from trainer_core.spec import TrainSpec
from trainer_core.step_rows import usual_rows


@dataclass(frozen=True)
class Need:
    """Rows of a training, or, where samples are joined to rows, the tokens that fill as many."""

    rows: int
    tokens: int | None

    @classmethod
    def of(cls, spec: TrainSpec, encoder: RowEncoder) -> "Need":
        """What a spec takes in all of its steps, on whatever hardware."""
        rows = rows_of(spec)
        return cls(rows, rows * encoder.max_length if spec.task.is_packed else None)

    def is_met(self, writer: ArrowWriter) -> bool:
        """Whether enough is written. Joined rows are no longer than `max_length`, so that as many
        tokens are as many rows or more."""
        if self.tokens is None:
            return writer.rows >= self.rows
        return writer.tokens >= self.tokens

    def rows_left(self, writer: ArrowWriter) -> int:
        """How many more rows of the sources can be of use: one at least."""
        return max(1, self.rows - writer.rows) if self.tokens is None else sys.maxsize


def rows_of(spec: TrainSpec) -> int:
    """The most rows that all steps of a spec take, the same for a resolved and an open one.

    A batch and an accumulation that are left open are chosen for the hardware, within the usual
    rows of a step.
    """
    training, processes = spec.training, spec.distributed.processes or 1
    batch = training.per_device_train_batch_size or 1
    said = batch * (training.gradient_accumulation_steps or 1)
    return (training.max_steps or 1) * processes * max(said, usual_rows(spec, processes))
