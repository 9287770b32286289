"""Samples to tokens with labels: one tokenizer call per batch, masks by character offsets."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from trainer_core.data.jinja import Spans
from trainer_core.data.masks import EndOfTurn, Masker
from trainer_core.data.rows import (
    BadRow,
    Conversation,
    Encoded,
    Place,
    PlainText,
    Sample,
    Segments,
    spoken,
)
from trainer_core.data.templates import FIELD, Template, adds_bos
from trainer_core.errors import InvalidSpec

Outcome = Encoded | BadRow
Flags = list[bool]
_DEFAULT_LOSS = {
    "messages": "assistant",
    "sharegpt": "assistant",
    "alpaca": "completion",
    "prompt_completion": "completion",
    "query_response": "assistant",
    "segments": "completion",
    "text": "all",
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a sample and the character ranges of it that carry loss."""

    text: str
    spans: Spans
    plain: bool


class Encoder:
    """Turns samples into `input_ids` and `labels` for one tokenizer and template.

    `whole`: texts stay whole for the tokenizer, because somebody else tokenizes them, too; a token
    that joins prompt and answer is learned then.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: Template,
        ends: EndOfTurn = "turn",
        *,
        whole: bool = False,
    ) -> None:
        if not tokenizer.is_fast:
            raise InvalidSpec(
                "the model's tokenizer cannot say which characters a token stands for (it has no "
                "tokenizer.json), so the loss mask cannot be checked: use a model with one",
                "model.name_or_path",
            )
        self._tokenizer = tokenizer
        self._ends = ends
        self._whole = whole
        self._masker = Masker(template, tokenizer, ends)
        self._bos = tokenizer.bos_token_id
        self._eos = tokenizer.eos_token_id
        self._adds_bos = adds_bos(tokenizer)

    def encode(
        self, samples: Sequence[tuple[Place, Sample]], loss_on: str
    ) -> Iterator[tuple[Place, Outcome]]:
        """Encode samples in order; a sample that cannot be used comes out as its BadRow."""
        rendered = [self._try_render(sample, loss_on) for _, sample in samples]
        texts = [r.text for r in rendered if isinstance(r, Rendered)]
        encodings = iter(self._tokenize(texts))
        for (place, _), item in zip(samples, rendered, strict=True):
            if isinstance(item, BadRow):
                yield place, item
            else:
                ids, trained = self._masked(item, next(encodings))
                yield place, self._finish(place, ids, trained, plain=item.plain)

    def render(self, sample: Sample, loss_on: str) -> Rendered:
        """The text that is tokenized; raises BadRow for a sample that cannot be trained."""
        if isinstance(sample, Conversation):
            return Rendered(*self._masker.render(sample, loss_on), plain=False)
        if isinstance(sample, Segments):
            return _pieces(sample, loss_on)
        return _plain(spoken(sample), loss_on)

    def prompts(self, samples: Sequence[Conversation | PlainText]) -> list[list[int] | BadRow]:
        """Tokens of what the model is given before it answers; a BadRow where it cannot be."""
        texts = [self._try_prompt(sample) for sample in samples]
        encodings = iter(self._tokenize([text for text in texts if isinstance(text, str)]))
        return [
            text if isinstance(text, BadRow) else self._begun(sample, next(encodings)[0])
            for sample, text in zip(samples, texts, strict=True)
        ]

    def _try_prompt(self, sample: Conversation | PlainText) -> str | BadRow:
        try:
            if isinstance(sample, Conversation):
                return self._masker.prompt(sample)
        except BadRow as problem:
            return problem
        return sample.prompt if sample.prompt.strip() else BadRow("`prompt` is empty")

    def _begun(self, sample: Conversation | PlainText, ids: list[int]) -> list[int]:
        """Plain text gets its BOS, where the tokenizer has that habit; templates write it."""
        habit = self._adds_bos and isinstance(sample, PlainText) and ids[:1] != [self._bos]
        return [self._bos, *ids] if habit else ids

    def cut(self, row: Encoded, length: int, *, keep_end: bool) -> Encoded:
        """The first (or last) `length` tokens of a row; a leading BOS stays."""
        ids, labels = row.input_ids, row.labels
        if not keep_end:
            return Encoded(row.place, ids[:length], labels[:length])
        if self._bos is not None and ids[0] == self._bos:
            ids, labels = [ids[0], *ids[1 - length :]], [-100, *labels[1 - length :]]
        else:
            ids, labels = ids[-length:], [-100, *labels[1 - length :]]
        return Encoded(row.place, ids, labels)

    def _try_render(self, sample: Sample, loss_on: str) -> Rendered | BadRow:
        try:
            return self.render(sample, loss_on)
        except BadRow as problem:
            return problem

    def _tokenize(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Tokens and their character ranges; no special token is added, templates write them."""
        if not texts:
            return []
        batch = self._tokenizer(
            list(texts),
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        return list(zip(batch["input_ids"], batch["offset_mapping"], strict=True))

    def _masked(
        self, item: Rendered, encoding: tuple[list[int], list[tuple[int, int]]]
    ) -> tuple[list[int], Flags]:
        ids, offsets = encoding
        tokens = _Offsets(offsets)
        boundaries = {b for span in item.spans for b in span}
        joined = any(tokens.within(b, b) for b in boundaries)
        if joined and not self._whole and (split := self._in_pieces(item, ids)):
            return split
        trained = [False] * len(ids)
        for start, end in item.spans:
            inside = tokens.within(start, end)
            trained[inside.start : inside.stop] = [True] * len(inside)
        return ids, trained

    def _in_pieces(self, item: Rendered, whole: list[int]) -> tuple[list[int], Flags] | None:
        """Tokenize prompt and answer apart, as inference does, where a token joins both.

        None for tokenizers whose pieces do not add up to the same text.
        """
        edges = sorted({0, len(item.text), *(b for span in item.spans for b in span)})
        pieces = list(pairwise(edges))
        tokens = [ids for ids, _ in self._tokenize([item.text[start:end] for start, end in pieces])]
        trained = [
            flag for t, p in zip(tokens, pieces, strict=True) for flag in [p in item.spans] * len(t)
        ]
        ids = [token for part in tokens for token in part]
        decode = self._tokenizer.decode
        return (ids, trained) if decode(ids) == decode(whole) else None

    def _finish(self, place: Place, ids: list[int], trained: Flags, *, plain: bool) -> Outcome:
        if plain:
            ids, trained = self._framed(ids, trained)
        elif self._bos is not None and ids[:2] == [self._bos, self._bos]:
            raise InvalidSpec(
                f"{FIELD} begins a conversation with two BOS tokens ('{self._tokenizer.bos_token}')"
                ": take one out",
                FIELD,
            )
        labels = [token if flag else -100 for token, flag in zip(ids, trained, strict=True)]
        labels[:1] = [-100] * len(labels[:1])  # nothing predicts a sample's first token
        return Encoded(place, ids, labels)

    def _framed(self, ids: list[int], trained: Flags) -> tuple[list[int], Flags]:
        """Plain text gets its BOS, where the tokenizer has that habit, and a trained EOS, once."""
        if self._eos is None:
            raise InvalidSpec(
                "the model's tokenizer has no end-of-sequence token, so a trained model would "
                "never stop: use conversations with a chat template",
                "model.name_or_path",
            )
        before = [self._bos] if self._adds_bos and ids[:1] != [self._bos] else []
        after = [self._eos] if ids[-1:] != [self._eos] else []
        learned = trained[-1] and self._ends != "none"
        trained = [*(False for _ in before), *trained, *(learned for _ in after)]
        trained[-1] = learned
        return [*before, *ids, *after], trained


def default_loss(format_: str, wanted: str | None, field: str) -> str:
    """Which tokens of a source carry loss; raises InvalidSpec for turns wanted of plain text."""
    if format_ == "text" and wanted not in (None, "all"):
        raise InvalidSpec(
            f"task.loss_on is '{wanted}', but {field} holds plain text, which has no turns: leave "
            "task.loss_on out, or say 'all'",
            "task.loss_on",
        )
    if format_ == "segments" and wanted not in (None, "completion", "all"):
        raise InvalidSpec(
            f"task.loss_on is '{wanted}', but {field} holds segments, which say themselves what "
            "carries loss: leave task.loss_on out, or say 'all'",
            "task.loss_on",
        )
    return wanted or _DEFAULT_LOSS[format_]


def _plain(sample: PlainText, loss_on: str) -> Rendered:
    text = sample.prompt + sample.completion
    start = 0 if loss_on == "all" else len(sample.prompt)
    if not sample.completion.strip():
        raise BadRow("the text to learn is empty")
    return Rendered(text, [(start, len(text))], plain=True)


def _pieces(sample: Segments, loss_on: str) -> Rendered:
    text, spans = "", []
    for piece, learned in sample.pieces:
        if learned or loss_on == "all":
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    if not any(text[slice(*span)].strip() for span in spans):
        raise BadRow("no token would be trained: no segment with `label` true holds text")
    return Rendered(text, spans, plain=True)


class _Offsets:
    """Character ranges of tokens, in order. A token also owns the blanks before it that some
    tokenizers omit, and none ends before one that stands in front of it."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = ranges
        self._ends = [*accumulate([end for _, end in ranges], max)]

    def within(self, first: int, last: int) -> range:
        """Tokens that lie, in part at least, between two characters; between one and itself: those
        that lie on both sides of it."""
        count = range(len(self._ranges))
        return range(bisect_right(self._ends, first), bisect_left(count, last, key=self._start))

    def _start(self, token: int) -> int:
        before = self._ends[token - 1] if token else 0
        return min(self._ranges[token][0], before)
