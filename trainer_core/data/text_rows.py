"""Rows of several texts and perhaps a label, for `sentence_transformer`.

How many texts a row has, and what its label is, the first row says; all others must agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.labels import LabelMap
from trainer_core.data.layout import ColumnKind, Layout
from trainer_core.data.row_encoder import EncodingSetup, Numbered, Outcomes
from trainer_core.data.rows import BadRow, LabelledText, Place, PlainText, Sample, Texts
from trainer_core.data.text_formats import labelled
from trainer_core.embedding.losses import (
    BINARY,
    CLASS,
    MANY,
    MAX_LENGTH,
    NONE,
    NUMBER,
    NUMBERS,
    Shape,
    settled_loss,
)
from trainer_core.spec import SentenceTransformerTask
from trainer_core.task_facts import block_of

_BETWEEN = -1  # no token has this number
_FRACTION = 1_000
_FLAGS = ({"0", "1"}, {"false", "true"})
_COLUMNS: dict[str, ColumnKind] = {CLASS: "int", NUMBER: "float", NUMBERS: "floats"}
_IN_WORDS = {NONE: "no label", CLASS: "a class", NUMBER: "a number", NUMBERS: "a list of numbers"}


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one row as tokens; of a class the label has its provisional id."""

    place: Place
    sample: Texts
    tokens: list[list[int]]
    label: list[float]

    @property
    def values(self) -> Mapping[str, Any]:
        """All tokens in one list, where each text ends, and the label's numbers."""
        ends: list[int] = []
        for ids in self.tokens:
            ends.append(len(ids) + (ends[-1] if ends else 0))
        return {"ids": [i for ids in self.tokens for i in ids], "ends": ends, "label": self.label}

    @property
    def longest(self) -> int:
        """Tokens of its longest text."""
        return max(map(len, self.tokens))

    @property
    def trained(self) -> int:
        """One thing is learned of a row."""
        return 1

    @property
    def content(self) -> Sequence[int]:
        """All its texts."""
        return [i for ids in self.tokens for i in (*ids, _BETWEEN)]

    @property
    def answer(self) -> Sequence[int]:
        """Its label (three places of each number), or what belongs to its first text."""
        if self.label:
            return [round(number * _FRACTION) % 2**31 for number in self.label]
        return [i for ids in self.tokens[1:] for i in (*ids, _BETWEEN)] or self.content


class TextRows:
    """One row a sample, each text with the special tokens that the model expects around it."""

    staged = Layout({"ids": "ints", "ends": "ints", "label": "floats"}, ("ids",))

    def __init__(self, setup: EncodingSetup) -> None:
        task = block_of(setup.spec, SentenceTransformerTask)
        self._spec = setup.spec
        self._tokenizer = setup.tokenizer
        self._task = task
        self._map = LabelMap(None)
        self._first: tuple[tuple[str, ...], str, int] | None = None
        self.final = self.staged
        self.max_length = self.row_limit = task.max_length or MAX_LENGTH

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Tokens of each text behind its prompt."""
        may_be_new = field.startswith("data.train")
        for (place, _), texts in zip(samples, _as_texts(samples), strict=True):
            if isinstance(texts, BadRow):
                yield place, texts
                continue
            try:
                label = self._checked(texts, may_be_new=may_be_new)
            except BadRow as problem:
                yield place, problem
                continue
            yield place, TextRow(place, texts, self._tokens(texts), label)

    def cut(self, row: TextRow, *, keep_end: bool) -> TextRow:  # noqa: ARG002 - the end is never kept
        """Each text by itself, at its end: prompts and special tokens stay."""
        self._tokenizer.truncation_side = "right"
        tokens = self._tokens(row.sample, truncation=True, max_length=self.max_length)
        return replace(row, tokens=tokens)

    def split(self, row: TextRow) -> Sequence[TextRow]:
        """Never asked for: half a text need not mean what the whole means."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """A column for each text, and the final label; raises InvalidSpec for a loss that does not
        fit the rows."""
        settled_loss(self._spec, self._shape())
        ids = self._ids()
        for number in chosen:
            row = rows[number]
            edges = [0, *row["ends"].tolist()]
            texts = {
                f"text_{i}": row["ids"][start:end] for i, (start, end) in enumerate(pairwise(edges))
            }
            yield texts | self._final(row["label"], ids)

    def facts(self) -> dict[str, Any]:
        """The shape of the rows, and what their texts and classes are called."""
        shape = self._shape()
        found = {"texts": shape.texts, "columns": list(self._known()[0]), "label": shape.label}
        if shape.labels:
            found["labels"] = list(shape.labels)
        return found | ({"width": shape.width} if shape.width else {})

    def example(self, row: TextRow) -> dict[str, Any]:
        """The texts as the model sees them, and the label as the row said it."""
        texts = [self._tokenizer.decode(ids) for ids in row.tokens]
        said = [] if row.sample.label is None else [str(row.sample.label)]
        return {"text": texts[0], "trained": [*texts[1:], *said]}

    def _checked(self, texts: Texts, *, may_be_new: bool) -> list[float]:
        """The row's label in numbers; raises BadRow for a row that is not like the first."""
        label = texts.label
        numbers = list(label) if isinstance(label, list) else []
        kind = _kind(label)
        if self._first is None:
            self._begin(texts.names, kind, len(numbers))
        names, first, width = self._known()
        if (texts.names, kind) != (names, first):
            raise BadRow(
                f"it has {_listed(texts.names)} and {_IN_WORDS[kind]}, but rows before it have "
                f"{_listed(names)} and {_IN_WORDS[first]}: all rows must be alike"
            )
        if len(numbers) != width:
            raise BadRow(f"it has {len(numbers)} numbers, but rows before it have {width}")
        return [float(self._map.number(label, may_be_new=may_be_new))] if kind == CLASS else numbers

    def _begin(self, names: tuple[str, ...], kind: str, width: int) -> None:
        if len(names) > MANY:
            raise BadRow(f"it has {len(names)} texts, but {MANY} are the most")
        self._first = (names, kind, width)
        texts: dict[str, ColumnKind] = {f"text_{i}": "ints" for i in range(len(names))}
        label: dict[str, ColumnKind] = {} if kind == NONE else {"label": _COLUMNS[kind]}
        self.final = Layout(texts | label, tuple(texts))

    def _known(self) -> tuple[tuple[str, ...], str, int]:
        if self._first is None:
            raise RuntimeError("no row was encoded")
        return self._first

    def _shape(self) -> Shape:
        names, kind, width = self._known()
        labels = tuple(self._map.names()) if kind == CLASS else ()
        if kind == CLASS and any(set(labels) <= flags for flags in _FLAGS):
            return Shape(len(names), BINARY, labels)
        return Shape(len(names), kind, labels, width if kind == NUMBERS else 0)

    def _ids(self) -> list[int]:
        """Provisional → final id of a class; of flags what they say."""
        ids, names = self._map.final_ids(), self._map.names()
        if self._shape().label == BINARY:
            return [int(names[i] in ("1", "true")) for i in ids]
        return ids

    def _final(self, label: Any, ids: list[int]) -> dict[str, Any]:
        kind = self._known()[1]
        if kind == NONE:
            return {}
        if kind == CLASS:
            return {"label": ids[int(label[0])]}
        return {"label": label[0] if kind == NUMBER else label}

    def _tokens(self, texts: Texts, **options: Any) -> list[list[int]]:
        found = self._tokenizer(
            [
                self._task.prompt(name) + text
                for name, text in zip(texts.names, texts.texts, strict=True)
            ],
            return_token_type_ids=False,
            return_attention_mask=False,
            verbose=False,
            **options,
        )
        return [list(ids) for ids in found["input_ids"]]


def _as_texts(samples: Numbered) -> Iterator[Texts | BadRow]:
    for _, sample in samples:
        try:
            yield _texts_of(sample)
        except BadRow as problem:
            yield problem


def _texts_of(sample: Sample) -> Texts:
    if isinstance(sample, LabelledText):
        if sample.pair is not None:
            raise BadRow("it has `text_pair`: name two texts `sentence1` and `sentence2`")
        found = Texts(("text",), (sample.text,), labelled(sample.label))
    elif isinstance(sample, PlainText):
        found = Texts(("text",), (sample.completion,), None)
    elif isinstance(sample, Texts):
        return sample
    else:
        raise TypeError(f"texts expected, not {type(sample).__name__}")
    if not found.texts[0].strip():
        raise BadRow("`text` is empty")
    return found


def _kind(label: Any) -> str:
    if label is None:
        return NONE
    if isinstance(label, list):
        return NUMBER if len(label) == 1 else NUMBERS
    return CLASS


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
