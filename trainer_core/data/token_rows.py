"""Rows of tokens with a loss mask: conversations and texts, for `sft`.

Reads `loss_on`, `train_on_eot`, `packing`, `packing_strategy` and `max_length` of a task's block,
where it has them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.encode import Encoder, default_loss
from trainer_core.data.layout import PACKED, TOKENS
from trainer_core.data.masks import EndOfTurn
from trainer_core.data.packing import fitted_rows, streamed_rows
from trainer_core.data.row_encoder import (
    DEFAULT_MAX_LENGTH,
    EncodingSetup,
    Numbered,
    Outcomes,
    as_they_are,
)
from trainer_core.data.rows import Encoded


class TokenRows:
    """One row a sample, or with packing several samples that do not see each other."""

    staged = TOKENS

    def __init__(self, setup: EncodingSetup) -> None:
        task = setup.spec.task
        self._loss_on: str | None = getattr(task, "loss_on", None)
        self._packing = getattr(task, "packing_strategy", "bfd") if task.is_packed else "none"
        self._tokenizer = setup.tokenizer
        ends: EndOfTurn = getattr(task, "train_on_eot", "turn")
        self._encoder = Encoder(setup.tokenizer, setup.chat_template(), ends)
        self.final = PACKED if self._packing == "bfd" else TOKENS
        self.max_length = task.row_length or DEFAULT_MAX_LENGTH
        self.row_limit = sys.maxsize if self._packing == "wrapped" else self.max_length

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:
        """Tokens and labels; raises InvalidSpec for a loss that the format does not have."""
        loss_on = default_loss(format_, self._loss_on, field)
        yield from self._encoder.encode(samples, loss_on)

    def cut(self, row: Encoded, *, keep_end: bool) -> Encoded:
        """Cut as the encoder does: a leading BOS stays."""
        return self._encoder.cut(row, self.max_length, keep_end=keep_end)

    def split(self, row: Encoded) -> Sequence[Encoded]:
        """Never asked for: the second half of an answer has no question."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Whole rows, or several in one."""
        if self._packing == "bfd":
            return fitted_rows(rows, chosen, self.max_length)
        if self._packing == "wrapped":
            return streamed_rows(rows, chosen, self.max_length)
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: Encoded) -> dict[str, Any]:
        """The rendered text, and the parts of it that are trained."""
        return token_example(row, self._tokenizer)


def token_example(row: Encoded, tokenizer: Any) -> dict[str, Any]:
    """A row as text and its trained parts, so that people can look at what is learned."""
    pairs = zip(row.input_ids, row.labels, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1] != -100)
    trained = [tokenizer.decode([i for i, _ in run]) for learned, run in runs if learned]
    return {"text": tokenizer.decode(row.input_ids), "trained": trained}
