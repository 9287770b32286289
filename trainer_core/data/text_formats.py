"""Formats of texts that belong together: anchors with positives, and pairs with a label.

The order of a row's columns means nothing: names say which text is which.
"""

import math
import re
from typing import Any

from trainer_core.data.messages import checked, kind, parsed
from trainer_core.data.numbers import SMALL_ENOUGH, held
from trainer_core.data.row_format import RowFormat, existing, text
from trainer_core.data.rows import BadRow, Sample, Texts

_MOST = 16
_NEGATIVES = tuple(f"negative_{number}" for number in range(1, _MOST + 1))
_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?")


def _anchor_positive(values: dict[str, Any]) -> Sample:
    texts = [("anchor", text(values, "anchor")), ("positive", text(values, "positive"))]
    for column in ("negative", *_NEGATIVES):
        texts += [("negative", given) for given in _negatives(values, column)]
    positive = texts[1][1]
    if any(name == "negative" and given == positive for name, given in texts):
        raise BadRow("a negative is the same as the positive: there is nothing to tell apart")
    return _texts(texts, values)


def _negatives(values: dict[str, Any], column: str) -> list[str]:
    given = values.get(column)
    if given is None:
        return []
    if isinstance(given, list):
        return [checked(one, f"{column}[{i}]") for i, one in enumerate(given)]
    return [checked(given, column)]


def _sentence_pair(values: dict[str, Any]) -> Sample:
    texts = [(name, text(values, name)) for name in ("sentence1", "sentence2")]
    if values.get("sentence3") is not None:
        texts.append(("sentence3", checked(values["sentence3"], "sentence3")))
    return _texts(texts, values)


def _texts(texts: list[tuple[str, str]], values: dict[str, Any]) -> Texts:
    for name, given in texts:
        if not given.strip():
            raise BadRow(f"`{name}` is empty")
    names, contents = zip(*texts, strict=True)
    has_score, has_label = (values.get(c) is not None for c in ("score", "label"))
    if has_score and has_label:
        raise BadRow("it has both `label` and `score`: map one of them in data.train[].columns")
    if has_score:
        return Texts(names, contents, numbers(existing(values, "score"), "score"))
    return Texts(names, contents, labelled(values["label"]) if has_label else None)


def labelled(label: Any) -> str | int | bool | list[float]:
    """What `label` says: a class (a name or whole number), or numbers.

    Whole numbers are classes here, and numbers in the column `score`.
    """
    if isinstance(label, float) or isinstance(parsed(label), list):
        return numbers(label, "label")
    if isinstance(label, str) and _NUMBER.fullmatch(label) and not label.lstrip("+-").isdecimal():
        raise BadRow(f"`label` is '{label}', a decimal number: name its column `score`")
    if isinstance(label, str) and not label.strip():
        raise BadRow("`label` is empty: it must be a name or a number")
    if not isinstance(label, str | int | bool):
        raise BadRow(f"`label` is {kind(label)}: it must be a name, a number or a list of numbers")
    return label


def numbers(given: Any, column: str) -> list[float]:
    """One number or a list of them, also written as text (CSV); raises BadRow."""
    given = parsed(given)
    listed = given if isinstance(given, list) else [given]
    found = [_number(one) for one in listed]
    if not found or any(math.isnan(one) for one in found):
        raise BadRow(f"`{column}` is {kind(given)}: it must be {SMALL_ENOUGH}, or a list of them")
    return found


def _number(given: Any) -> float:
    if isinstance(given, str):
        return held(float(given)) if _NUMBER.fullmatch(given.strip()) else math.nan
    return held(given)


ANCHOR_POSITIVE = RowFormat(
    ("anchor", "positive", "negative", *_NEGATIVES, "label", "score"),
    ("anchor", "positive"),
    "`anchor` and `positive` (with `negative`, `negative_1`, …)",
    _anchor_positive,
)
SENTENCE_PAIR = RowFormat(
    ("sentence1", "sentence2", "sentence3", "label", "score"),
    ("sentence1", "sentence2"),
    "`sentence1` and `sentence2` (with `label` or `score`)",
    _sentence_pair,
)
