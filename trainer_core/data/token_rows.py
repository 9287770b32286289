"""Rows of tokens with a loss mask: conversations and texts, for `sft`.

Reads `loss_on`, `packing` and `max_length` of a task's block, where it has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.encode import Encoder, default_loss
from trainer_core.data.layout import PACKED, TOKENS
from trainer_core.data.packing import packed_rows
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
        self._packing = task.is_packed
        self._tokenizer = setup.tokenizer
        self._encoder = Encoder(setup.tokenizer, setup.chat_template())
        self.final = PACKED if self._packing else TOKENS
        self.max_length = self.row_limit = task.row_length or DEFAULT_MAX_LENGTH

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
        """Whole rows, or packed ones."""
        if self._packing:
            return packed_rows(rows, chosen, self.max_length)
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
