"""Rows of labelled texts: tokens of a text or a pair, and its label, for `text_classification`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.data.label_rows import LabelRows
from trainer_core.data.labels import as_number
from trainer_core.data.layout import ColumnKind, Layout
from trainer_core.data.row_encoder import EncodingSetup
from trainer_core.data.rows import BadRow, LabelledText, Place
from trainer_core.spec import TextClassificationTask
from trainer_core.task_facts import block_of

MAX_LENGTH = 128
_STAGED: dict[str, ColumnKind] = {
    "single_label_classification": "int",
    "multi_label_classification": "ints",
    "regression": "float",
}
_TYPES = "token_type_ids"
_FRACTION = 1_000


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """One labelled text as tokens; `label` is provisional until all labels are known."""

    place: Place
    sample: LabelledText
    tokens: Mapping[str, list[int]]
    label: int | list[int] | float

    @property
    def values(self) -> Mapping[str, Any]:
        """Tokens and label."""
        return {**self.tokens, "labels": self.label}

    @property
    def longest(self) -> int:
        """Its tokens."""
        return len(self.tokens["input_ids"])

    @property
    def trained(self) -> int:
        """One label."""
        return 1

    @property
    def content(self) -> Sequence[int]:
        """Its tokens."""
        return self.tokens["input_ids"]

    @property
    def answer(self) -> Sequence[int]:
        """Its labels as numbers; of decimal ones three places."""
        if isinstance(self.label, float):
            return [round(self.label * _FRACTION) % 2**31]
        return self.label if isinstance(self.label, list) else [self.label]


class LabelledRows(LabelRows):
    """One row a text; the label map is known when all training rows have been read."""

    def __init__(self, setup: EncodingSetup) -> None:
        self._task = block_of(setup.spec, TextClassificationTask)
        self._tokenizer = setup.tokenizer
        super().__init__(self._task.label_names)
        self._typed = _TYPES in setup.tokenizer.model_input_names
        self.max_length = self.row_limit = self._task.max_length or MAX_LENGTH
        staged = _STAGED[self._task.problem_type]
        self.staged = self._layout(staged)
        self.final = self._layout("floats" if staged == "ints" else staged)

    def cut(self, row: LabelledRow, *, keep_end: bool) -> LabelledRow:
        """The longer text of a pair is cut first; special tokens stay."""
        self._tokenizer.truncation_side = "left" if keep_end else "right"
        tokens = self._tokens(row.sample, truncation=True, max_length=self.max_length)
        return LabelledRow(row.place, row.sample, tokens, row.label)

    def facts(self) -> dict[str, Any]:
        """The names of the labels in the order of their ids."""
        return {} if self._task.problem_type == "regression" else super().facts()

    def example(self, row: LabelledRow) -> dict[str, Any]:
        """The text as the model sees it, and its label as the row said it."""
        text = self._tokenizer.decode(row.tokens["input_ids"])
        return {"text": text, "trained": [str(row.sample.label)]}

    def _layout(self, label: ColumnKind) -> Layout:
        types: dict[str, ColumnKind] = {_TYPES: "ints"} if self._typed else {}
        return Layout({"input_ids": "ints", **types, "labels": label}, ("input_ids",))

    def _row(self, place: Place, sample: Any, *, may_be_new: bool) -> LabelledRow:
        if not sample.text.strip():
            raise BadRow("`text` is empty: there is nothing to classify")
        label = self._label(sample.label, may_be_new=may_be_new)
        return LabelledRow(place, sample, self._tokens(sample), label)

    def _label(self, label: Any, *, may_be_new: bool) -> int | list[int] | float:
        if self._task.problem_type == "regression":
            return as_number(label)
        if self._task.problem_type == "multi_label_classification":
            return self._map.numbers(label, self._task.label_separator, may_be_new=may_be_new)
        return self._map.number(label, may_be_new=may_be_new)

    def _tokens(self, sample: LabelledText, **options: Any) -> dict[str, list[int]]:
        found = self._tokenizer(
            sample.text,
            sample.pair,
            return_token_type_ids=self._typed,
            return_attention_mask=False,
            verbose=False,
            **options,
        )
        return {name: list(found[name]) for name in ("input_ids", _TYPES) if name in found}

    def _final(self, label: Any, ids: list[int]) -> Any:
        if self._task.problem_type == "regression":
            return label
        if self._task.problem_type == "multi_label_classification":
            hot = {ids[i] for i in label}
            return [float(i in hot) for i in range(len(ids))]
        return super()._final(label, ids)
