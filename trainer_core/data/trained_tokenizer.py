"""Training a tokenizer on the training texts, of the kind that a model has.

The same texts always give the same tokenizer, so that a run can be repeated.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from trainer_core.data.formats import detect, rename, to_sample
from trainer_core.data.rows import BadRow, Row, spoken
from trainer_core.data.sources import Source
from trainer_core.errors import InvalidData, InvalidSpec

_FIELD = "task.train_tokenizer"
_HEAD = 20
_BATCH = 256
Texts = Callable[[], Iterator[list[str]]]


def texts_of(sources: Iterable[Source]) -> Iterator[list[str]]:
    """The texts of all sources in batches; rows that cannot be used are passed over."""
    found = (text for source in sources for text in _texts(source))
    while batch := list(islice(found, _BATCH)):
        yield batch


def trained_like(tokenizer: Any, texts: Texts, vocab_size: int) -> Any:
    """A new tokenizer with the algorithm, normalization and special tokens of `tokenizer`.

    `texts` is called once or twice and gives batches of texts. Raises InvalidSpec for a tokenizer
    that cannot be trained, or a vocabulary too small for the texts' characters, and InvalidData
    for texts without any.
    """
    if not tokenizer.is_fast:
        raise InvalidSpec(
            f"{_FIELD} needs a tokenizer with a tokenizer.json, which this model does not have: "
            "take another model's",
            _FIELD,
        )
    new = _trained(tokenizer, texts, vocab_size)
    model = json.loads(new.backend_tokenizer.to_str())["model"]
    if model["type"] == "WordPiece":
        _settle(tokenizer, new, texts, (vocab_size, model["continuing_subword_prefix"]))
    _check(tokenizer, new, vocab_size)
    return new


def _trained(tokenizer: Any, texts: Texts, vocab_size: int, first: list[str] | None = None) -> Any:
    try:
        return tokenizer.train_new_from_iterator(
            texts(), vocab_size, new_special_tokens=first, show_progress=False
        )
    except ValueError as error:
        raise InvalidSpec(f"{_FIELD}: {str(error).splitlines()[0]}", _FIELD) from error


def _settle(tokenizer: Any, new: Any, texts: Texts, rules: tuple[int, str]) -> None:
    """Give tokens the ids, and ties the order, that do not change from one training to the next.

    The trainer numbers the pieces of one character in the order of a hash table, and decides
    between equally frequent pairs by these numbers: here they are given beforehand.
    """
    from tokenizers.models import WordPiece  # noqa: PLC0415 - heavy

    vocab_size, prefix = rules
    long = len(prefix) + 1
    pieces = [t for t in new.get_vocab() if t.startswith(prefix) and len(t) == long]
    again = _trained(tokenizer, texts, vocab_size, sorted(pieces))
    old = json.loads(new.backend_tokenizer.to_str())["model"]
    new.backend_tokenizer.model = WordPiece(
        vocab=again.get_vocab(),
        unk_token=old["unk_token"],
        continuing_subword_prefix=prefix,
        max_input_chars_per_word=old["max_input_chars_per_word"],
    )


def _check(tokenizer: Any, new: Any, vocab_size: int) -> None:
    learned = len(new) - len(tokenizer.all_special_tokens)
    if learned <= 0:
        raise InvalidData(f"{_FIELD}: the training texts have no word to learn from", "data.train")
    if len(new) > vocab_size:
        raise InvalidSpec(
            f"{_FIELD}.vocab_size is {vocab_size}, but the characters of the texts and the special "
            f"tokens alone are {len(new)}: raise it",
            f"{_FIELD}.vocab_size",
        )


def _texts(source: Source) -> Iterator[str]:
    head = list(islice((row for row in source.rows() if row.problem is None), _HEAD))
    if not head:
        return  # preparation says what is wrong with it
    format_ = detect(head, source.spec, source.field, ("text",))
    for row in source.rows():
        if (text := _text(row, source, format_)) is not None:
            yield text


def _text(row: Row, source: Source, format_: str) -> str | None:
    if row.problem is not None:
        return None
    try:
        return spoken(to_sample(rename(row.values, source.spec.columns), format_, None)).completion
    except BadRow:
        return None
