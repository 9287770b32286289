"""The first samples of prepared rows, token by token, with what of them is learned.

What is shown are the labels that training gets, so a preview cannot differ from the run. How rows
of a kind become samples is in the table `_KINDS`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from trainer_core.data.images import decoded
from trainer_core.data.prepared import Prepared
from trainer_core.embedding.losses import BINARY
from trainer_core.errors import InvalidSpec
from trainer_core.plans.results import Part, Sample, Token
from trainer_core.reward_columns import PREFIX
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_IGNORED = -100
_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens that one character may need; more are no character that is cut in pieces."""
Row = Mapping[str, Any]


def preview(spec: TrainSpec, data: Prepared, tokenizer: Any, count: int) -> list[Sample]:
    """The first `count` training samples of a resolved spec; fewer where there are fewer.

    A sample is what carries a loss of its own: a conversation (packed or not), a document or, where
    documents are joined, a row of their stream; a text, pair of texts or image with its label; a
    preference with both sides; a judged answer; the texts of a row that are compared; a prompt.
    `tokenizer` is None for rows without text. Raises InvalidSpec for a count below 1.
    """
    if count < 1:
        raise InvalidSpec(f"{count} samples cannot be shown: ask for 1 or more", "samples")
    shown = _KINDS[task_of(spec).FACTS.rows]
    rows = (data.train[number] for number in range(len(data.train)))
    samples = (sample for row in rows for sample in _unpacked(row))
    facts = data.report.facts
    return [
        Sample(number=number, **shown(_Reader(tokenizer, facts), sample))
        for number, sample in enumerate(islice(samples, count), 1)
    ]


class _Reader:
    """Turns ids into tokens that people can read; `facts` are those of all rows."""

    def __init__(self, tokenizer: Any, facts: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self.facts = facts

    def part(self, name: str, ids: Sequence[int], labels: Sequence[int] | None = None) -> Part:
        """A sequence with its loss mask; without labels no token of it is learned."""
        trained = [False] * len(ids) if labels is None else [i != _IGNORED for i in labels]
        cells = zip(ids, self._texts(ids), trained, strict=True)
        return Part(name=name, tokens=[Token(id=i, text=t, trained=b) for i, t, b in cells])

    def _texts(self, ids: Sequence[int]) -> Iterator[str]:
        """The text of each token; a character of several tokens stands at the last of them."""
        open_: list[int] = []
        for id_ in ids:
            open_.append(id_)
            text = self._tokenizer.decode(open_)
            if text.endswith(_UNFINISHED) and len(open_) < _LONGEST_CHARACTER:
                yield ""
            else:
                open_ = []
                yield text

    def label(self, value: Any) -> str:
        """A label's name, the names of several, or numbers."""
        names: list[str] = self.facts.get("labels") or []
        if isinstance(value, list):
            if not names:
                return ", ".join(f"{number:g}" for number in value)
            return ", ".join(n for n, flag in zip(names, value, strict=True) if flag)
        return names[value] if names and isinstance(value, int) else f"{value:g}"


def _unpacked(row: Row) -> Iterator[Row]:
    """The samples of a packed row, whose positions restart with each; any other row as it is."""
    positions = row.get("position_ids")
    if positions is None:
        yield row
        return
    starts = [number for number, position in enumerate(positions) if position == 0]
    for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
        yield {name: values[start:end] for name, values in row.items()}


def _tokens(reader: _Reader, row: Row) -> dict[str, Any]:
    return {"parts": [reader.part("text", row["input_ids"], row["labels"])]}


def _labelled_text(reader: _Reader, row: Row) -> dict[str, Any]:
    return {
        "parts": [reader.part("text", row["input_ids"])],
        "label": reader.label(row["labels"]),
    }


def _labelled_image(reader: _Reader, row: Row) -> dict[str, Any]:
    return {"parts": [], "images": _images(row), "label": reader.label(row["labels"])}


def _pictured(reader: _Reader, row: Row) -> dict[str, Any]:
    return {**_tokens(reader, row), "images": _images(row)}


def _preference(reader: _Reader, row: Row) -> dict[str, Any]:
    sides = ("chosen", "rejected")
    return {"parts": [reader.part(s, row[f"{s}_ids"], row[f"{s}_labels"]) for s in sides]}


def _judged(reader: _Reader, row: Row) -> dict[str, Any]:
    return {**_tokens(reader, row), "label": "desirable" if row["label"] else "undesirable"}


def _compared(reader: _Reader, row: Row) -> dict[str, Any]:
    names = reader.facts["columns"]
    parts = [reader.part(name, row[f"text_{number}"]) for number, name in enumerate(names)]
    if "label" not in row:
        return {"parts": parts}
    flags = reader.facts["label"] == BINARY  # they are what they say, whatever the rows called them
    return {"parts": parts, "label": str(row["label"]) if flags else reader.label(row["label"])}


def _prompt(reader: _Reader, row: Row) -> dict[str, Any]:
    given = {n.removeprefix(PREFIX): v for n, v in row.items() if n.startswith(PREFIX)}
    return {"parts": [reader.part("prompt", row["prompt"])], "given": given}


def _images(row: Row) -> list[str]:
    return [_in_words(data) for data in row["images"]]


def _in_words(data: bytes) -> str:
    picture = decoded(data, "an image")
    return f"{picture.width} × {picture.height} pixels, {len(data)} bytes"


_KINDS: dict[str, Callable[[_Reader, Row], dict[str, Any]]] = {
    "tokens": _tokens,
    "documents": _tokens,
    "masked_documents": _tokens,
    "labelled_texts": _labelled_text,
    "labelled_images": _labelled_image,
    "pictured_texts": _pictured,
    "preferences": _preference,
    "judged_answers": _judged,
    "texts": _compared,
    "prompts": _prompt,
}
WITH_MASK = frozenset(
    {"tokens", "documents", "masked_documents", "pictured_texts", "preferences", "judged_answers"}
)
"""Kinds of rows whose single tokens carry loss."""
