"""What a row format is, and reading a row's columns with errors that name them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer_core.data.messages import checked, listed, nearest
from trainer_core.data.rows import BadRow, Sample


@dataclass(frozen=True)
class RowFormat:
    """One format: the columns it reads, those it needs (in words too), and its converter.

    A converter alters no content and raises BadRow for what it cannot use.
    """

    columns: tuple[str, ...]
    required: tuple[str, ...]
    needs: str
    convert: Callable[[dict[str, Any]], Sample]


def text(values: Mapping[str, Any], column: str) -> str:
    """The text of a column; raises BadRow where there is none."""
    return checked(existing(values, column), column)


def optional_text(values: Mapping[str, Any], column: str) -> str:
    """The text of a column that may be missing, null or empty; nothing else is left out."""
    value = values.get(column)
    return "" if value is None else checked(value, column)


def existing(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column; raises BadRow where there is no such column."""
    if column not in values:
        raise BadRow(
            f"the column `{column}` is missing{nearest(column, list(values))}; the row has "
            f"{listed(values)}"
        )
    return values[column]
