"""Rows of a prompt with an answer that is desirable or not, for `kto`; pairs become two rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.encode import Encoder
from trainer_core.data.layout import Layout
from trainer_core.data.row_encoder import (
    DEFAULT_MAX_LENGTH,
    EncodingSetup,
    Numbered,
    Outcomes,
    as_they_are,
)
from trainer_core.data.rows import BadRow, Encoded, Judged, Place, Preference
from trainer_core.data.token_rows import token_example

JUDGED = Layout(
    {"input_ids": "ints", "labels": "ints", "label": "int"}, ("input_ids",), ("labels",)
)


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """Tokens with the loss mask of the answer, and whether it is desirable."""

    encoded: Encoded
    desirable: bool

    @property
    def place(self) -> Place:
        """Where the row stood."""
        return self.encoded.place

    @property
    def values(self) -> Mapping[str, Any]:
        """The three columns."""
        return {**self.encoded.values, "label": int(self.desirable)}

    @property
    def longest(self) -> int:
        """Its tokens."""
        return self.encoded.longest

    @property
    def trained(self) -> int:
        """Tokens of the answer."""
        return self.encoded.trained

    @property
    def content(self) -> Sequence[int]:
        """Its tokens."""
        return self.encoded.content

    @property
    def answer(self) -> Sequence[int]:
        """The answer, and what is thought of it."""
        return [*self.encoded.answer, int(self.desirable)]


class JudgedRows:
    """Prompt and answer are masked and tokenized together, exactly as for `sft`."""

    staged = final = JUDGED

    def __init__(self, setup: EncodingSetup) -> None:
        self._tokenizer = setup.tokenizer
        self._encoder = Encoder(setup.tokenizer, setup.chat_template())
        self.max_length = self.row_limit = setup.spec.task.row_length or DEFAULT_MAX_LENGTH

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """One row for each answer: a pair has two, of which either may be unusable."""
        answers = [(place, one) for place, sample in samples for one in _judged(sample)]
        encoded = self._encoder.encode(
            [(place, one.answered) for place, one in answers], "completion"
        )
        for (place, outcome), (_, one) in zip(encoded, answers, strict=True):
            if isinstance(outcome, BadRow):
                yield place, outcome
            else:
                yield place, JudgedRow(outcome, one.desirable)

    def cut(self, row: JudgedRow, *, keep_end: bool) -> JudgedRow:
        """The first tokens."""
        cut = self._encoder.cut(row.encoded, self.max_length, keep_end=keep_end)
        return JudgedRow(cut, row.desirable)

    def split(self, row: JudgedRow) -> Sequence[JudgedRow]:
        """Never asked for: half an answer was not judged."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Whole rows."""
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: JudgedRow) -> dict[str, Any]:
        """The text with its answer, and what is thought of it."""
        return token_example(row.encoded, self._tokenizer) | {"desirable": row.desirable}


def _judged(sample: Any) -> list[Judged]:
    if isinstance(sample, Judged):
        return [sample]
    if isinstance(sample, Preference):
        return [Judged(sample.chosen, True), Judged(sample.rejected, False)]
    raise TypeError(f"a judged answer expected, not {type(sample).__name__}")
