"""Rows of preferences: a prompt with its chosen and with its rejected answer, for `dpo`."""

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
from trainer_core.data.rows import BadRow, Encoded, Place, Preference
from trainer_core.data.token_rows import token_example

PAIRS = Layout(
    {
        "chosen_ids": "ints",
        "chosen_labels": "ints",
        "rejected_ids": "ints",
        "rejected_labels": "ints",
    },
    ("chosen_ids", "rejected_ids"),
    ("chosen_labels", "rejected_labels"),
)
_BETWEEN = -1  # no token has this number


@dataclass(frozen=True, slots=True)
class PairRow:
    """Both sides as tokens with their loss masks: what follows the prompt carries loss."""

    chosen: Encoded
    rejected: Encoded

    @property
    def place(self) -> Place:
        """Where the row stood."""
        return self.chosen.place

    @property
    def values(self) -> Mapping[str, Any]:
        """The four columns."""
        return {
            "chosen_ids": self.chosen.input_ids,
            "chosen_labels": self.chosen.labels,
            "rejected_ids": self.rejected.input_ids,
            "rejected_labels": self.rejected.labels,
        }

    @property
    def longest(self) -> int:
        """Tokens of the longer side."""
        return max(self.chosen.longest, self.rejected.longest)

    @property
    def trained(self) -> int:
        """Trained tokens of the side with fewer; 0 where nothing tells the sides apart."""
        if self.chosen.input_ids == self.rejected.input_ids:
            return 0
        return min(self.chosen.trained, self.rejected.trained)

    @property
    def content(self) -> Sequence[int]:
        """Both sides."""
        return [*self.chosen.input_ids, _BETWEEN, *self.rejected.input_ids]

    @property
    def answer(self) -> Sequence[int]:
        """Both answers."""
        return [*self.chosen.answer, _BETWEEN, *self.rejected.answer]


class PreferenceRows:
    """Prompt and answer are masked and tokenized together, exactly as for `sft`."""

    staged = final = PAIRS

    def __init__(self, setup: EncodingSetup) -> None:
        self._tokenizer = setup.tokenizer
        self._encoder = Encoder(setup.tokenizer, setup.chat_template())
        self.max_length = self.row_limit = setup.spec.task.row_length or DEFAULT_MAX_LENGTH

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Both sides of each sample; it cannot be used where one of them cannot."""
        sides = [
            (place, side)
            for place, sample in samples
            if isinstance(sample, Preference)
            for side in (sample.chosen, sample.rejected)
        ]
        outcomes = self._encoder.encode(sides, "completion")
        for place, _ in samples:
            yield place, _paired(next(outcomes)[1], next(outcomes)[1])

    def cut(self, row: PairRow, *, keep_end: bool) -> PairRow:
        """Both sides cut to the first tokens."""
        sides = (row.chosen, row.rejected)
        cut = [
            self._encoder.cut(side, self.max_length, keep_end=keep_end)
            if side.longest > self.max_length
            else side
            for side in sides
        ]
        return PairRow(cut[0], cut[1])

    def split(self, row: PairRow) -> Sequence[PairRow]:
        """Never asked for: half an answer is not preferred to another half."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Whole rows."""
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: PairRow) -> dict[str, Any]:
        """The chosen side as text with its answer, and the rejected answer."""
        chosen, rejected = (token_example(e, self._tokenizer) for e in (row.chosen, row.rejected))
        return chosen | {"rejected": rejected["trained"]}


def _paired(chosen: Encoded | BadRow, rejected: Encoded | BadRow) -> PairRow | BadRow:
    if isinstance(chosen, BadRow):
        return BadRow(f"`chosen`: {chosen.message}")
    if isinstance(rejected, BadRow):
        return BadRow(f"`rejected`: {rejected.message}")
    return PairRow(chosen, rejected)
