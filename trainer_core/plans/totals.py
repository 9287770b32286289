"""How many rows a source has, told by its files without reading them through."""

from collections.abc import Sequence
from math import sqrt

from trainer_core.data.readers import File, kind_of
from trainer_core.data.sources import Source
from trainer_core.errors import TrainerError
from trainer_core.plans.results import Interval

_LOOKED_AT = 4 << 20
"""Bytes of a file that are looked at; the lines of one that has no more are all counted."""
_PIECES = 32
SURE = 1.96
"""Standard errors on either side of a mean that hold it with 95 %, where rows come by chance."""


def rows_of(source: Source, known: int | None) -> Interval | None:
    """Rows that a source gives, by `known` (counted before) or by its files.

    None where nothing tells: archives, compressed files, JSON arrays, images, data sets of a hub.
    """
    total = _exactly(known) if known is not None else _of_files(source)
    return None if total is None else _wanted(source, total)


def _wanted(source: Source, total: Interval) -> Interval:
    """What `num_samples` or `fraction` leaves of it."""
    share, most = source.spec.fraction or 1.0, source.spec.num_samples

    def taken(count: float) -> float:
        return max(1.0, round(count * share)) if most is None else min(count, most)

    high = None if total.high is None else taken(total.high)
    return Interval(low=taken(total.low), likely=taken(total.likely), high=high)


def _of_files(source: Source) -> Interval | None:
    if source.spec.source == "hub":
        return None
    with source.looked_into() as files:
        found = [_of_file(file) for file in files]
    counts = [each for each in found if each is not None]
    return added(counts) if counts and len(counts) == len(found) else None


def added(parts: Sequence[Interval]) -> Interval:
    """The sum; its bounds are the sums of all bounds."""
    highs = [part.high for part in parts if part.high is not None]
    return Interval(
        low=sum(part.low for part in parts),
        likely=sum(part.likely for part in parts),
        high=sum(highs) if len(highs) == len(parts) else None,
    )


def _of_file(file: File) -> Interval | None:
    if file.path.suffix.lower() in (".gz", ".zip"):
        return None
    try:
        kind = kind_of(file)
    except TrainerError:  # reading it will say what is wrong
        return None
    if kind == "parquet":
        return _of_parquet(file)
    return _of_lines(file, header=kind == "csv") if kind in ("jsonl", "csv") else None


def _of_parquet(file: File) -> Interval | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            return _exactly(pq.read_metadata(stream).num_rows)
    except (OSError, pa.ArrowInvalid):  # as above
        return None


def _of_lines(file: File, *, header: bool) -> Interval | None:
    """All of a small file's; of a larger one by how close they are in pieces from all over it.

    From its beginning alone it would be wrong: numbers in rows grow longer towards the end.
    """
    size = file.size
    with file.open() as stream:
        if size <= _LOOKED_AT:
            lines = (line for line in stream if not line.isspace())
            return _exactly(max(sum(1 for _ in lines) - header, 0))
        length = _LOOKED_AT // _PIECES
        found = []
        for number in range(_PIECES):
            stream.seek((size - length) * number // (_PIECES - 1))
            found.append(stream.read(length).count(b"\n") / length)
    mean = sum(found) / _PIECES
    if not mean:
        return None
    spread = sqrt(sum((each - mean) ** 2 for each in found) / (_PIECES - 1))
    error = min(SURE * spread / (sqrt(_PIECES) * mean), 0.9)
    likely = size * mean
    return Interval(low=likely * (1 - error), likely=likely, high=likely * (1 + error))


def _exactly(count: int) -> Interval:
    return Interval(low=count, likely=count, high=count)
