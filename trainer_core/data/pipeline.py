"""From a source's rows to prepared rows, with every row accounted for."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import sqrt

from trainer_core.data.formats import detect, rename, to_sample
from trainer_core.data.ledger import Ledger
from trainer_core.data.messages import ignored_keys
from trainer_core.data.row_encoder import RowEncoder
from trainer_core.data.rows import BadRow, Place, PreparedRow, Row, Sample
from trainer_core.data.sources import Source
from trainer_core.errors import InvalidData
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_BATCH = 256
_HEAD = 20
_HEAD_LIMIT = 1000
_TELL_SECONDS = 2.0
_MOST_FRUITLESS = 100_000  # rows of a stream in a row


@dataclass
class Spread:
    """How different the rows that were read are in something of which they have `total`."""

    total: int = 0
    squares: int = 0

    def add(self, value: int) -> None:
        """Count one row; those that have nothing need not be counted."""
        self.total += value
        self.squares += value * value

    def by_mean(self, rows: int) -> float:
        """The standard deviation over so many rows by their mean; of one row nothing is known."""
        if rows < 2 or not self.total:
            return 1.0
        mean = self.total / rows
        return sqrt(max(self.squares - rows * mean**2, 0.0) / (rows - 1)) / mean


@dataclass
class Counts:
    """What went in, for progress and the report; warnings are (code, message).

    `made` is of the prepared rows that a row became, `tokens` of theirs.
    """

    rows: int = 0
    made: Spread = field(default_factory=Spread)
    tokens: Spread = field(default_factory=Spread)
    formats: dict[str, str] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)


class Pipeline:
    """Encodes sources under one task's and one spec's policies."""

    def __init__(
        self, spec: TrainSpec, encoder: RowEncoder, ledger: Ledger, tell: Callable[[int], None]
    ) -> None:
        self._data = spec.data
        self._accepted = task_of(spec).FACTS.formats
        self._system: str | None = getattr(spec.task, "default_system", None)
        self._encoder = encoder
        self._ledger = ledger
        self._tell = tell
        self._told = time.monotonic()
        self._fruitless = 0
        self.counts = Counts()

    def encode(
        self, source: Source, wanted: Callable[[], int] = lambda: _BATCH
    ) -> Iterator[PreparedRow]:
        """Prepared rows of one source, in order; raises InvalidData for what policies refuse.

        `wanted` says how many more are of use: no more rows are read at once.
        """
        rows = source.rows()
        head = _head(rows)
        if not head:
            raise InvalidData(f"{source.field}: '{source.spec.path}' has no rows", source.field)
        readable = [row for row in head if row.problem is None]
        if not readable:
            self._refuse(head, source)
        format_ = detect(readable[:_HEAD], source.spec, source.field, self._accepted)
        self.counts.formats[source.key] = format_
        self._note_ignored(readable[:_HEAD], format_, source)
        for batch in _batches(chain(head, rows), wanted):
            self._fruitless += len(batch)
            samples = list(self._samples(batch, format_, source))
            for place, outcome in self._encoder.encode(samples, format_, source.field):
                made = list(self._accept(place, outcome))
                self.counts.made.add(len(made))
                self.counts.tokens.add(sum(row.longest for row in made))
                for row in made:
                    self._fruitless = 0
                    yield row
            self._check_fruits(source)
            self._report_progress()

    def _check_fruits(self, source: Source) -> None:
        """A stream may have no end: it is left where nothing comes of it."""
        if not self._data.streaming or self._fruitless < _MOST_FRUITLESS:
            return
        self._ledger.check(self.counts.rows)
        raise InvalidData(
            f"{source.field}: none of {self._fruitless:,} rows in a row can be used: look at "
            "task.max_length, data.over_length and data.on_bad_row",
            source.field,
        )

    def _note_ignored(self, rows: Iterable[Row], format_: str, source: Source) -> None:
        renamed = (rename(row.values, source.spec.columns) for row in rows)
        ignored = set[str]().union(*(ignored_keys(values, format_) for values in renamed))
        if ignored:
            names = ", ".join(f"`{name}`" for name in sorted(ignored))
            self.counts.warnings.append(
                ("ignored_keys", f"{source.field}: {names} of its messages are not read")
            )

    def _refuse(self, head: list[Row], source: Source) -> None:
        for row in head:
            self._ledger.bad(row.place, row.problem or "")
        self._ledger.check(0)
        raise InvalidData(
            f"{source.field}: none of the first {len(head)} rows can be read: {head[0].place}: "
            f"{head[0].problem}",
            source.field,
        )

    def _samples(
        self, rows: Iterable[Row], format_: str, source: Source
    ) -> Iterator[tuple[Place, Sample]]:
        for row in rows:
            self.counts.rows += 1
            if row.problem is not None:
                self._ledger.bad(row.place, row.problem)
                continue
            try:
                values = rename(row.values, source.spec.columns)
                yield row.place, to_sample(values, format_, self._system)
            except BadRow as problem:
                self._ledger.bad(row.place, problem.message)

    def _accept(self, place: Place, outcome: PreparedRow | BadRow) -> Iterator[PreparedRow]:
        if isinstance(outcome, BadRow):
            self._ledger.bad(place, outcome.message)
            return
        for row in self._fit(outcome):
            if row.trained:
                yield row
                continue
            self._ledger.bad(
                place,
                f"no token would be trained (task.max_length {self._encoder.max_length}, "
                f"{outcome.longest} tokens): raise task.max_length or change the row",
            )

    def _fit(self, row: PreparedRow) -> Sequence[PreparedRow]:
        """The row, cut where the policy says so; nothing where it is not used."""
        tokens = row.longest
        if tokens <= self._encoder.row_limit:
            return [row]
        policy = self._data.over_length
        if policy == "error":
            self._ledger.over_length(row.place, tokens)
            return []
        if policy == "drop":
            self._ledger.drop_long(row.place, tokens)
            return []
        if policy == "split":
            pieces = self._encoder.split(row)
            self._ledger.split_long(row.place, tokens, len(pieces))
            return pieces
        self._ledger.cut_long(row.place, tokens, policy)
        return [self._encoder.cut(row, keep_end=policy == "truncate_left")]

    def _report_progress(self) -> None:
        if time.monotonic() - self._told >= _TELL_SECONDS:
            self._told = time.monotonic()
            self._tell(self.counts.rows)


def _head(rows: Iterator[Row]) -> list[Row]:
    """Rows until enough of them are readable to see their format."""
    head: list[Row] = []
    readable = 0
    for row in islice(rows, _HEAD_LIMIT):
        head.append(row)
        readable += row.problem is None
        if readable == _HEAD:
            break
    return head


def _batches(rows: Iterable[Row], wanted: Callable[[], int]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, min(_BATCH, wanted()))):
        yield batch
