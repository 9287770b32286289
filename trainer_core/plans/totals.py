"""How many rows a source has, told by its files without reading them through."""

import csv
import io
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt

from trainer_core.data.readers import File, delimiter_of, kind_of, read_file
from trainer_core.data.sources import Source
from trainer_core.errors import TrainerError
from trainer_core.plans.results import Interval

_LOOKED_AT = 4 << 20
"""Bytes of a source that are looked at; the rows of one that has no more are all counted."""
_PIECES = 32
_LINES = ("jsonl", "csv")
SURE = 1.96
"""Standard errors on either side of a mean that hold it with 95 %, where rows come by chance."""


def rows_of(source: Source, known: int | None) -> Interval | None:
    """Rows that a source gives, by `known` (counted before) or by its files.

    None where nothing tells: archives, compressed files, JSON arrays, images, data sets of a hub,
    large CSV files with line ends in their fields.
    """
    total = exactly(known) if known is not None else _of_files(source)
    return None if total is None else taken_of(source, total)


def taken_of(source: Source, total: Interval) -> Interval:
    """What `num_samples` or `fraction` leaves of so many rows."""
    share, most = source.spec.fraction or 1.0, source.spec.num_samples

    def taken(count: float) -> float:
        return max(1.0, round(count * share)) if most is None else min(count, most)

    high = None if total.high is None else taken(total.high)
    return Interval(low=taken(total.low), likely=taken(total.likely), high=high)


def exactly(count: int) -> Interval:
    """A number that is known."""
    return Interval(low=count, likely=count, high=count)


def added(parts: Sequence[Interval]) -> Interval:
    """The sum; its bounds are the sums of all bounds."""
    highs = [part.high for part in parts if part.high is not None]
    return Interval(
        low=sum(part.low for part in parts),
        likely=sum(part.likely for part in parts),
        high=sum(highs) if len(highs) == len(parts) else None,
    )


def _of_files(source: Source) -> Interval | None:
    if source.spec.source == "hub":
        return None
    with source.looked_into() as files:
        try:
            kinds = [_kind(file) for file in files]
            if not kinds or not set(kinds) <= {*_LINES, "parquet"}:
                return None
            kind_by_file = [*zip(files, kinds, strict=True)]
            whole = [_of_parquet(file) for file, kind in kind_by_file if kind == "parquet"]
            lines = _of_lines([each for each in kind_by_file if each[1] in _LINES])
        except (TrainerError, OSError):  # reading them will say what is wrong
            return None
    return None if lines is None else added([*whole, lines])


def _kind(file: File) -> str:
    packed = file.path.suffix.lower() in (".gz", ".zip")
    return "packed" if packed else kind_of(file)


def _of_parquet(file: File) -> Interval:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            return exactly(pq.read_metadata(stream).num_rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise file.error(f" is not a whole Parquet file: {error}") from error


def _of_lines(files: Sequence[tuple[File, str]]) -> Interval | None:
    """Rows of files with a row a line: counted, or by how close lines are in pieces from all over.

    From their beginnings alone it would be wrong: numbers in rows grow longer towards the end.
    """
    size = sum(file.size for file, _ in files)
    if size <= _LOOKED_AT:
        return exactly(sum(1 for file, _ in files for _ in read_file(file)))
    tables = [file for file, kind in files if kind == "csv"]
    if tables and _breaks_lines(tables[0]):
        return None
    pieces = _pieces([file for file, _ in files], size)
    mean = sum(lines for lines, _ in pieces) / sum(length for _, length in pieces)
    if not mean:
        return None
    off = sqrt(sum((lines - mean * length) ** 2 for lines, length in pieces) / (_PIECES - 1))
    each = sum(length for _, length in pieces) / _PIECES
    error = min(SURE * off / (sqrt(_PIECES) * mean * each), 0.9)
    likely = size * mean
    header = len(tables)
    return Interval(
        low=max(likely * (1 - error) - header, 0.0),
        likely=max(likely - header, 0.0),
        high=max(likely * (1 + error) - header, 0.0),
    )


def _pieces(files: Sequence[File], size: int) -> list[tuple[int, int]]:
    """Lines and bytes of pieces from all over the files, as if they lay behind each other."""
    length = _LOOKED_AT // _PIECES
    ends = [*accumulate(file.size for file in files)]
    found = []
    for number in range(_PIECES):
        at = max(size - length, 0) * number // (_PIECES - 1)
        which = next(i for i, end in enumerate(ends) if at < end)
        file = files[which]
        begin = min(at - (ends[which] - file.size), max(file.size - length, 0))
        with file.open() as stream:
            stream.seek(begin)
            piece = stream.read(length)
        torn = begin + len(piece) == file.size and not piece.endswith(b"\n")
        found.append((piece.count(b"\n") + torn, len(piece)))
    return found


def _breaks_lines(table: File) -> bool:
    """Whether fields of a CSV file hold line ends, so that lines do not tell its rows."""
    with table.open() as stream:
        head = stream.read(_LOOKED_AT // _PIECES).decode("utf-8", "replace")
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter_of(table))
    try:
        ends = [reader.line_num for _ in reader][:-1]  # the last one is cut
    except csv.Error:
        return True
    return ends != [*range(1, len(ends) + 1)]
