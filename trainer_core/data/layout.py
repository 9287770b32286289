"""Layouts: which columns the rows of an Arrow file have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ColumnKind = Literal["ints", "floats", "int", "float", "text", "files"]
"""A list of int32 or float32, one such number, a text, or a list of files' bytes. A new kind goes
here and into `arrow.py`."""


@dataclass(frozen=True)
class Layout:
    """Columns by name. `sequences` are the lists of tokens; `targets` the lists of labels.

    A label of −100 carries no loss. A layout without `targets` learns one thing a row, one without
    `sequences` is of rows that count as one token each.
    """

    columns: Mapping[str, ColumnKind]
    sequences: tuple[str, ...]
    targets: tuple[str, ...] = ()


TOKENS = Layout({"input_ids": "ints", "labels": "ints"}, ("input_ids",), ("labels",))
PACKED = Layout(
    {"input_ids": "ints", "labels": "ints", "position_ids": "ints"}, ("input_ids",), ("labels",)
)
