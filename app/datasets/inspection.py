"""Looks through an uploaded file: `python -m app.datasets.inspection <path> <name>`.

It runs as a process of its own, so that a big file costs the API neither memory nor time. The file
is read exactly as preparation will read it. The answer is one JSON object on stdout.
"""

import gzip
import json
import resource
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path

from app.datasets.parquet import MAGIC, BrokenParquet, Footer, read_footer
from trainer_core.data.formats import detect, to_sample
from trainer_core.data.local import Wish, read_local
from trainer_core.data.readers import File, kind_of, read_file
from trainer_core.data.rows import BadRow, Row
from trainer_core.data.trees import is_zip
from trainer_core.errors import InvalidData, TrainerError
from trainer_core.spec import DataSource

SEEN_FOR_FORMAT = 100
MOST_PROBLEMS = 50
MOST_BROKEN = 10
MOST_COLUMNS = 1000
NO_MEMORY = 3
_MEMORY = 4 * 2**30
_FIELD = "data.train[0]"


@dataclass
class Problem:
    """Something about one row, or about the file (line None)."""

    line: int | None
    message: str


@dataclass
class Inspection:
    """What an uploaded file holds; with `refused` it is not taken."""

    file_format: str = ""
    rows: int | None = None
    row_format: str | None = None
    columns: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)


def inspect(path: Path, name: str) -> Inspection:
    """Return what the file holds; never raises for what is wrong with it."""
    file = File("file", path, name)
    try:
        kind = _kind(file)
        return _inspect_parquet(path, name) if kind == "parquet" else _inspect_rows(file, kind)
    except BrokenParquet as error:
        message = f"{name} is not a whole Parquet file: {error}. Write or upload it again"
        return Inspection(refused=[Problem(None, message)])
    except TrainerError as error:
        return Inspection(refused=[Problem(None, _plain(error.message.removeprefix("file: ")))])


def _kind(file: File) -> str:
    with file.path.open("rb") as stream:
        head = stream.read(4)
    if is_zip(file.open()):
        return "zip"
    if not head:
        raise InvalidData(f"{file.name} is empty: upload a file with at least one row")
    try:
        kind = kind_of(file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidData(f"{file.name} is a damaged gzip file: compress it again") from error
    if head == MAGIC and kind != "parquet":
        raise InvalidData(f"{file.name} is a Parquet file: name it .parquet")
    return kind


def _inspect_rows(file: File, kind: str) -> Inspection:
    found = Inspection(kind, rows=0)
    rows = read_file(file) if kind != "zip" else _in_archive(file)
    first = list(islice(rows, SEEN_FOR_FORMAT))
    found.row_format = _detect([row for row in first if row.problem is None], found)
    columns: dict[str, None] = {}
    counter = _Counter(found, found.row_format)
    for row in chain(first, rows):
        counter.add(row)
        if len(columns) < MOST_COLUMNS:
            columns.update(dict.fromkeys(row.values))
        if len(found.refused) >= MOST_BROKEN:
            break
    if not counter.rows and not found.refused:
        message = f"{file.name} has no rows: upload a file with at least one"
        found.refused.append(Problem(None, message))
    found.rows = counter.rows
    found.columns = [_plain(name)[:200] for name in islice(columns, MOST_COLUMNS)]
    counter.close()
    return found


def _in_archive(file: File) -> Iterator[Row]:
    """Yield the rows of an archive; images are counted, and read when a job prepares its data."""
    return read_local(file.path, file.field, file.name, Wish(images=True, part=None))


class _Counter:
    """Counts rows and keeps the first problems among them."""

    def __init__(self, found: Inspection, row_format: str | None) -> None:
        self.rows = 0
        self._found = found
        self._format = row_format
        self._problems = 0

    def add(self, row: Row) -> None:
        """Take one row: broken ones refuse the file, unusable ones are noted."""
        self.rows += 1
        if row.problem is not None:
            message = f"{row.place}: {row.problem}. Correct or remove the line"
            self._found.refused.append(Problem(row.place.number, _plain(message)))
        elif self._format is not None:
            self._check(row, self._format)

    def _check(self, row: Row, row_format: str) -> None:
        try:
            to_sample(row.values, row_format, None)
        except BadRow as error:
            self._problems += 1
            if self._problems <= MOST_PROBLEMS:
                message = _plain(f"{row.place}: {error.message}")
                self._found.problems.append(Problem(row.place.number, message))

    def close(self) -> None:
        """Say how many more problems there were."""
        if self._problems > MOST_PROBLEMS:
            more = self._problems - MOST_PROBLEMS
            self._found.problems.append(Problem(None, f"and {more} more rows with problems"))


def _detect(rows: list[Row], found: Inspection) -> str | None:
    if not rows:
        return None
    try:
        return detect(rows, DataSource(source="upload", path="file"), _FIELD)
    except TrainerError as error:
        found.problems.append(Problem(None, _plain(error.message)))
        return None


def _inspect_parquet(path: Path, name: str) -> Inspection:
    footer = read_footer(path)
    if not footer.rows:
        message = f"{name} has no rows: upload a file with at least one"
        return Inspection(refused=[Problem(None, message)])
    found = Inspection("parquet", footer.rows, columns=[_plain(c)[:200] for c in footer.columns])
    place = File("file", path, name).place(1, "row")
    found.row_format = _detect([Row(place, dict(_example(footer)))], found)
    return found


def _example(footer: Footer) -> Iterator[tuple[str, object]]:
    """Yield a row as its columns promise it, to detect the format by."""
    for column, names in footer.columns.items():
        turn = {"from": "human"} if "from" in names else {"role": "user"}
        yield column, [turn] if names else ""


def _plain(text: str) -> str:
    """Make a text storable: no NUL, no half characters, no endless message."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:2000]


def main(path: str, name: str) -> int:
    """Print the inspection as JSON; exits with NO_MEMORY when memory does not suffice."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        found = inspect(Path(path), name)
    except MemoryError:
        return NO_MEMORY
    sys.stdout.write(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
