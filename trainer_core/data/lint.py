"""Lint: what is suspicious about the training rows, but no error."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from trainer_core.data.rows import PreparedRow

_CHECKED = 1_000_000  # rows; more would take too much memory
_LARGE_SHARE = 0.5
_MIN_ROWS = 10


class Lint:
    """Counts duplicates and identical answers among the first million rows."""

    def __init__(self) -> None:
        self._samples: dict[bytes, bytes] = {}
        self._contradicting = 0
        self._answers: Counter[bytes] = Counter()
        self._rows = 0

    def see(self, row: PreparedRow) -> None:
        """Look at one row."""
        if self._rows >= _CHECKED:
            return
        self._rows += 1
        answer = _digest(row.answer)
        known = self._samples.setdefault(_digest(row.content), answer)
        self._contradicting += known != answer
        self._answers[answer] += 1

    def warnings(self) -> Iterator[tuple[str, str]]:
        """Code and message of each finding."""
        duplicates = self._rows - len(self._samples)
        if duplicates:
            yield (
                "duplicate_rows",
                f"{duplicates} of {self._rows} training rows repeat another one",
            )
        if self._contradicting:
            yield (
                "contradicting_rows",
                f"{self._contradicting} of {self._rows} training rows have another answer than an "
                "equal row before them",
            )
        most = max(self._answers.values(), default=0)
        if self._rows >= _MIN_ROWS and most / self._rows > _LARGE_SHARE:
            yield (
                "identical_answers",
                f"{most} of {self._rows} training rows have the same answer: the model may learn "
                "to say nothing else",
            )


def _digest(numbers: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", numbers).tobytes(), digest_size=12).digest()
