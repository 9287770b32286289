"""The ledger: each dropped, cut or refused row with its place and reason, on disk."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer_core.data.rows import Place
from trainer_core.errors import InvalidData
from trainer_core.spec import Data

_SHOWN = 5


@dataclass
class Problems:
    """What is wrong with the rows of one kind: how many, and the first few in words."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Count one row; keep its words if it is among the first."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(text)


class Ledger:
    """Writes `ledger.jsonl`, and decides by the spec's policies whether a row ends the run."""

    def __init__(self, path: Path, data: Data, max_length: int, policies: Sequence[str]) -> None:
        # Rows may hold half characters, which no encoding takes.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")
        self._data = data
        self._max_length = max_length
        self._policies = [policy for policy in policies if policy != "error"]
        self._bad = Problems()
        self._long = Problems()
        self._longest = 0
        self.dropped = 0
        self.cut = 0

    def bad(self, place: Place, message: str, reason: str = "bad_row") -> None:
        """A row that cannot be used; raises InvalidData once enough of them are known."""
        self._bad.add(f"{place}: {message}")
        if self._data.on_bad_row == "error" and self._bad.count >= _SHOWN:
            raise self._bad_rows()
        self.dropped += 1
        self._write(place, "dropped", reason, message)

    def over_length(self, place: Place, tokens: int) -> None:
        """A row that is longer than `max_length` under the policy `error`."""
        self._long.add(f"{place} ({tokens} tokens)")
        self._longest = max(self._longest, tokens)

    def drop_long(self, place: Place, tokens: int) -> None:
        """A row dropped because of its length."""
        self.dropped += 1
        self._write(place, "dropped", "over_length", f"{tokens} tokens")

    def cut_long(self, place: Place, tokens: int, policy: str) -> None:
        """A row cut to `max_length`."""
        self.cut += 1
        self._write(place, "cut", "over_length", f"{policy}: {tokens} tokens → {self._max_length}")

    def split_long(self, place: Place, tokens: int, pieces: int) -> None:
        """A row that went on in further rows; nothing of it is lost."""
        self._write(place, "split", "over_length", f"{tokens} tokens → {pieces} rows")

    def mixed(self, field: str, path: str, action: str, message: str) -> None:
        """A source of which a mixture leaves rows out (`left`), or has them again (`repeated`)."""
        self._enter(field, path, action, "mixture", message)

    def check(self, rows_in: int) -> None:
        """Raise InvalidData if the rows seen so far break a policy of the spec."""
        if self._bad.count and self._data.on_bad_row == "error":
            raise self._bad_rows()
        if self._long.count:
            raise self._long_rows()
        if rows_in and self._bad.count / rows_in > self._data.max_bad_ratio:
            raise InvalidData(
                f"{self._bad.count} of {rows_in} rows cannot be used, more than "
                f"data.max_bad_ratio allows ({self._data.max_bad_ratio:g}): "
                f"{'; '.join(self._bad.first)}. Mend them, or raise data.max_bad_ratio",
                "data.max_bad_ratio",
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _bad_rows(self) -> InvalidData:
        return InvalidData(
            f"{'; '.join(self._bad.first)}. Mend these rows, or set data.on_bad_row to 'drop'",
            "data.on_bad_row",
        )

    def _long_rows(self) -> InvalidData:
        more = f" and {self._long.count - _SHOWN} more" if self._long.count > _SHOWN else ""
        return InvalidData(
            f"{self._long.count} rows are longer than task.max_length ({self._max_length}), the "
            f"longest has {self._longest} tokens: {', '.join(self._long.first)}{more}. Raise "
            f"task.max_length, or choose data.over_length: {_either(self._policies)}",
            "data.over_length",
        )

    def _write(self, place: Place, action: str, reason: str, message: str) -> None:
        self._enter(place.field, str(place), action, reason, message)

    def _enter(self, field: str, place: str, action: str, reason: str, message: str) -> None:
        entry = {
            "source": field,
            "place": place,
            "action": action,
            "reason": reason,
            "message": message,
        }
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _either(names: Sequence[str]) -> str:
    """The names as one says a choice: `a`, `a or b`, `a, b or c`."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
