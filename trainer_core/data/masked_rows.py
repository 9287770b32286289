"""Rows of plain documents whose tokens will be masked, for `mlm`.

`labels` hold each token that may be asked for, −100 where a special one stands; which of them are
asked for is drawn in training, anew in each epoch. `word_starts` marks the first token of a word.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trainer_core.data.arrow import ArrowRows, Values
from trainer_core.data.layout import ColumnKind, Layout
from trainer_core.data.row_encoder import EncodingSetup, Numbered, Outcomes, as_they_are
from trainer_core.data.rows import BadRow, Place, spoken
from trainer_core.errors import InvalidSpec
from trainer_core.spec import MlmTask
from trainer_core.task_facts import block_of

MAX_LENGTH = 512
IGNORED = -100


@dataclass(frozen=True, slots=True)
class MaskableRow:
    """Tokens, what of them may be asked for, and where words start (empty: nobody asks)."""

    place: Place
    input_ids: list[int]
    labels: list[int]
    word_starts: list[int]

    @property
    def values(self) -> Mapping[str, Any]:
        """The columns that the layout has."""
        words = {"word_starts": self.word_starts} if self.word_starts else {}
        return {"input_ids": self.input_ids, "labels": self.labels, **words}

    @property
    def longest(self) -> int:
        """Its tokens."""
        return len(self.input_ids)

    @property
    def trained(self) -> int:
        """Tokens that may be asked for."""
        return len(self.labels) - self.labels.count(IGNORED)

    @property
    def content(self) -> Sequence[int]:
        """Its tokens."""
        return self.input_ids

    @property
    def answer(self) -> Sequence[int]:
        """Its tokens: what is asked for is drawn later."""
        return self.input_ids

    def part(self, start: int, end: int) -> "MaskableRow":
        """The tokens from `start` to before `end`."""
        columns = (self.input_ids, self.labels, self.word_starts)
        return MaskableRow(self.place, *(column[start:end] for column in columns))


class MaskedRows:
    """Texts in one stream that is cut into full rows, or a row each (`task.line_by_line`)."""

    def __init__(self, setup: EncodingSetup) -> None:
        self._task = block_of(setup.spec, MlmTask)
        self._tokenizer = setup.tokenizer
        self.max_length = self._task.max_length or MAX_LENGTH
        self._check()
        self._before, self._after = frame(setup.tokenizer)
        self._room = self.max_length - len(self._before) - len(self._after)
        self._special = set(setup.tokenizer.all_special_ids)
        self.row_limit = self.max_length if self._task.line_by_line else sys.maxsize
        words: dict[str, ColumnKind] = {"word_starts": "ints"} if self._by_word else {}
        columns: dict[str, ColumnKind] = {"input_ids": "ints", "labels": "ints", **words}
        self.staged = self.final = Layout(columns, ("input_ids",), ("labels",))

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Tokens of each text; with special tokens around it where it stays a row of its own."""
        texts = [spoken(sample).completion for _, sample in samples]
        if not texts:
            return
        found = self._tokenizer(
            texts, add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        for number, ((place, _), text) in enumerate(zip(samples, texts, strict=True)):
            row = self._row(place, found, number)
            if not text.strip():
                yield place, BadRow("`text` is empty")
            elif not row.trained:
                yield place, BadRow("`text` has no token that could be masked: all are special")
            else:
                yield place, self._framed(row) if self._task.line_by_line else row

    def cut(self, row: MaskableRow, *, keep_end: bool) -> MaskableRow:
        """The first or last tokens of a text, between its special tokens."""
        inner = self._inner(row)
        size = len(inner.input_ids)
        return self._framed(
            inner.part(size - self._room, size) if keep_end else inner.part(0, self._room)
        )

    def split(self, row: MaskableRow) -> Sequence[MaskableRow]:
        """Full rows in order, each between special tokens."""
        inner = self._inner(row)
        starts = range(0, len(inner.input_ids), self._room)
        parts = [inner.part(start, start + self._room) for start in starts]
        return [self._framed(part) for part in parts if part.trained]

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """As they are, or the stream of all texts in rows of `max_length`."""
        if self._task.line_by_line:
            return as_they_are(rows, chosen)
        return self._chunks(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: MaskableRow) -> dict[str, Any]:
        """The text, and as what may be asked for the beginning of it."""
        shown = row.part(0, self.max_length)
        text = self._tokenizer.decode(shown.input_ids)
        asked = [i for i in shown.labels if i != IGNORED]
        return {"text": text, "trained": [self._tokenizer.decode(asked)]}

    @property
    def _by_word(self) -> bool:
        return self._task.whole_word_mask

    def _check(self) -> None:
        if self._tokenizer.mask_token_id is None:
            raise InvalidSpec(
                "the model's tokenizer has no mask token: masked language modelling needs an "
                "encoder such as BERT; for a causal language model use task 'clm'",
                "model.name_or_path",
            )
        if self._by_word and not self._tokenizer.is_fast:
            raise InvalidSpec(
                "task.whole_word_mask needs a tokenizer that knows its words (with a "
                "tokenizer.json), which this model does not have: set it to false",
                "task.whole_word_mask",
            )
        most = self._tokenizer.model_max_length
        if self._task.from_config is None and self.max_length > most:
            raise InvalidSpec(
                f"task.max_length is {self.max_length}, but the model takes {most} tokens: set it "
                f"to {most} or less",
                "task.max_length",
            )

    def _row(self, place: Place, found: Any, number: int) -> MaskableRow:
        ids = list(found["input_ids"][number])
        labels = [IGNORED if i in self._special else i for i in ids]
        starts: list[int] = []
        if self._by_word:
            words = [None, *found.word_ids(number)]
            starts = [int(word != before) for before, word in pairwise(words)]
        return MaskableRow(place, ids, labels, starts)

    def _framed(self, row: MaskableRow) -> MaskableRow:
        before, after = self._before, self._after
        starts = [*(0 for _ in before), *row.word_starts, *(0 for _ in after)]
        return MaskableRow(
            row.place,
            [*before, *row.input_ids, *after],
            [*(IGNORED for _ in before), *row.labels, *(IGNORED for _ in after)],
            starts if self._by_word else [],
        )

    def _inner(self, row: MaskableRow) -> MaskableRow:
        return row.part(len(self._before), len(row.input_ids) - len(self._after))

    def _chunks(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[dict[str, Values]]:
        """Texts with `after` (the separator) between them, in rows between `before` and `after`."""
        names = list(self.final.columns)
        edges = {name: (_edge(name, self._before), _edge(name, self._after)) for name in names}
        for chunk in _slices(
            rows, chosen, self._room, {n: after for n, (_, after) in edges.items()}
        ):
            if np.any(chunk["labels"] != IGNORED):
                yield {
                    name: np.concatenate([edges[name][0], chunk[name], edges[name][1]])
                    for name in names
                }


def _edge(name: str, special: list[int]) -> Values:
    fill = {"labels": IGNORED, "word_starts": 0}
    values = special if name == "input_ids" else [fill[name]] * len(special)
    return np.array(values, dtype=np.int32)


def _slices(
    rows: ArrowRows, chosen: Sequence[int], size: int, between: Mapping[str, Values]
) -> Iterator[dict[str, Values]]:
    """The stream of the chosen rows in slices of `size` tokens; the last one may be shorter."""
    held = {name: values[:0] for name, values in between.items()}
    for count, number in enumerate(chosen):
        row = rows[number]
        held = {
            name: np.concatenate(
                [held[name], between[name] if count else held[name][:0], row[name]]
            )
            for name in held
        }
        full = len(held["input_ids"]) // size * size
        for start in range(0, full, size):
            yield {name: values[start : start + size] for name, values in held.items()}
        held = {name: values[full:] for name, values in held.items()}
    if len(held["input_ids"]):
        yield held


def frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and behind a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return list(whole[:start]), list(whole[start + len(bare) :])
    return [], []
