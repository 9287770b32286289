"""Rows of plain documents: wrapped, fitted together or one each, for `clm`.

Reads `packing`, `add_eos_token` and `max_length` of a task's block, where it has them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.layout import PACKED, TOKENS
from trainer_core.data.packing import fitted_rows, wrapped_rows
from trainer_core.data.row_encoder import (
    DEFAULT_MAX_LENGTH,
    EncodingSetup,
    Numbered,
    Outcomes,
    as_they_are,
)
from trainer_core.data.rows import BadRow, Encoded, Place, spoken
from trainer_core.data.templates import adds_bos
from trainer_core.data.token_rows import token_example
from trainer_core.errors import InvalidSpec


class DocumentRows:
    """Every token of a document carries loss, but the first of a row, which nothing predicts."""

    staged = TOKENS

    def __init__(self, setup: EncodingSetup) -> None:
        task = setup.spec.task
        self._packing: str = getattr(task, "packing", "none")
        self._tokenizer = setup.tokenizer
        self._before = [setup.tokenizer.bos_token_id] if adds_bos(setup.tokenizer) else []
        self._after = [setup.tokenizer.eos_token_id] if getattr(task, "add_eos_token", True) else []
        if None in self._after:
            raise InvalidSpec(
                "task.add_eos_token is true, but the model's tokenizer has no end-of-sequence "
                "token: set it to false",
                "task.add_eos_token",
            )
        self.final = PACKED if self._packing == "bfd" else TOKENS
        self.max_length = task.row_length or DEFAULT_MAX_LENGTH
        self.row_limit = sys.maxsize if self._packing == "wrapped" else self.max_length

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Tokens of each document, between BOS (where the tokenizer has that habit) and EOS."""
        texts = [spoken(sample).completion for _, sample in samples]
        if not texts:
            return
        tokens = self._tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        for (place, _), text, ids in zip(samples, texts, tokens, strict=True):
            yield place, self._row(place, list(ids)) if text.strip() else BadRow("`text` is empty")

    def cut(self, row: Encoded, *, keep_end: bool) -> Encoded:
        """The first or last tokens of a document."""
        ids = row.input_ids
        kept = ids[-self.max_length :] if keep_end else ids[: self.max_length]
        return _learned(row.place, kept)

    def split(self, row: Encoded) -> Sequence[Encoded]:
        """Full rows in order; the last has two tokens at least, so that one of them is learned."""
        ids, size = row.input_ids, self.max_length
        edges = [*range(0, len(ids), size), len(ids)]
        if edges[-1] - edges[-2] == 1:
            edges[-2] -= 1
        return [_learned(row.place, ids[start:end]) for start, end in pairwise(edges)]

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """As `task.packing` says."""
        if self._packing == "wrapped":
            return wrapped_rows(rows, chosen, self.max_length)
        if self._packing == "bfd":
            return fitted_rows(rows, chosen, self.max_length)
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: Encoded) -> dict[str, Any]:
        """The document and what of it is trained."""
        shown = _learned(row.place, row.input_ids[: self.max_length])
        return token_example(shown, self._tokenizer)

    def _row(self, place: Place, ids: list[int]) -> Encoded:
        before = self._before if ids[:1] != self._before else []
        after = self._after if ids[-1:] != self._after else []
        return _learned(place, [*before, *ids, *after])


def _learned(place: Place, ids: list[int]) -> Encoded:
    return Encoded(place, ids, [-100, *ids[1:]])
