"""Lists in columns as wide as what is in them; nothing is cut, so that programs can read them."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len

from polar.commands.screen import visible


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a head and rows; None is an empty cell."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    lines = [list(columns), *cells]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        pairs = zip(line, widths, strict=True)
        padded = [cell + " " * (width - cell_len(cell)) for cell, width in pairs]
        print("  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    return "" if value is None else visible(" ".join(str(value).split("\n")))


def when(time: datetime | None) -> str:
    """Return a time as `2026-11-30 10:00:00`, in UTC."""
    return "" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"


def size(count: float | None) -> str:
    """Return bytes in the unit that suits them."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
