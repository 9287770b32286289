"""The first rows of each source, prepared as all of them would be, and what they tell of all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainer_core.data.mixture import weights_of
from trainer_core.data.prepared import Prepared, open_prepared
from trainer_core.data.sources import Source, sources_of
from trainer_core.places import FIELD, make_folder
from trainer_core.plans.results import Interval
from trainer_core.plans.totals import added, exactly, rows_of, taken_of
from trainer_core.prepare import prepare
from trainer_core.spec import DataSource, Launch, SplitRatio, TrainSpec

_NO_END = 10**9  # steps


@dataclass(frozen=True)
class Sampled:
    """Prepared first rows; `total` counts the rows that training reads, None: nobody knows."""

    data: Prepared
    total: Interval | None


@contextmanager
def sampled(
    launch: Launch, secrets: Mapping[str, str], first: int, emit: Callable[..., Any] | None
) -> Iterator[Sampled]:
    """Prepare about `first` training rows of a launch with a resolved spec; raises as `prepare`.

    They lie in the run's work folder as long as the context lasts.
    """
    work = Path(launch.paths.work)
    make_folder(work, FIELD)
    spec = launch.spec
    sources = sources_of(launch, secrets, work / "sources")["train"]
    counts = [rows_of(each, launch.known_rows.get(each.key)) for each in sources]
    wanted = [max(1, round(first * share)) for share in _shares(spec, counts)]
    few = launch.model_copy(update={"spec": _with_first(spec, wanted)})
    with TemporaryDirectory(prefix="sample-", dir=work) as name:
        prepare(few, Path(name) / "rows", emit=emit, secrets=secrets)
        data = open_prepared(Path(name) / "rows")
        if len(sources) == 1 and data.report.rows_in < wanted[0]:
            counts = [_all_of(sources[0], data.report.rows_in)]
        yield Sampled(data, _total(spec, counts))


def _all_of(source: Source, read: int) -> Interval:
    """Of a source that has ended before as many rows came as were wanted."""
    return taken_of(source, exactly(read))


def _shares(spec: TrainSpec, counts: Sequence[Interval | None]) -> list[float]:
    """The part that each source has in training: by its weight, or else by its rows."""
    found = weights_of(spec) or [0.0 if count is None else count.likely for count in counts]
    if weights_of(spec) is None and (None in counts or not sum(found)):
        found = [1.0] * len(counts)
    return [each / sum(found) for each in found]


def _with_first(spec: TrainSpec, wanted: Sequence[int]) -> TrainSpec:
    """The spec with so many rows of each source, read as a stream: nothing behind them."""
    train = [_first(source, count) for source, count in zip(spec.data.train, wanted, strict=True)]
    data = {
        "train": train,
        "validation": None,
        "streaming": True,
        "stopping_strategy": "first_exhausted",
        "max_bad_ratio": 1.0,  # of all rows, not of a few
    }
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update=data),
            "training": spec.training.model_copy(update={"max_steps": _NO_END}),
        }
    )


def _first(source: DataSource, count: int) -> DataSource:
    most = count if source.num_samples is None else min(count, source.num_samples)
    drawn = {"num_samples": most, "fraction": None, "seed": None, "weight": None}
    return source.model_copy(update=drawn)


def _total(spec: TrainSpec, counts: Sequence[Interval | None]) -> Interval | None:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or spec.data.streaming:
        return None
    weights = weights_of(spec)
    total = added(known) if weights is None else _mixed(spec, weights, known)
    held = spec.data.validation
    return _without(total, held.split_ratio) if isinstance(held, SplitRatio) else total


def _without(total: Interval, ratio: float) -> Interval:
    """What is left of it where a share is held out, which is a whole number of rows."""
    kept = times(total, 1 - ratio)
    high = None if kept.high is None else ceil(kept.high)
    return Interval(low=floor(kept.low), likely=kept.likely, high=high)


def _mixed(spec: TrainSpec, weights: Sequence[float], counts: Sequence[Interval]) -> Interval:
    """Rows of a mixture: it ends with the source that is through first, or last."""
    end = max if spec.data.stopping_strategy == "all_exhausted" else min
    shares = [weight / sum(weights) for weight in weights]
    whole = [times(count, 1 / share) for count, share in zip(counts, shares, strict=True)]
    highs = [each.high for each in whole if each.high is not None]
    return Interval(
        low=end(each.low for each in whole),
        likely=end(each.likely for each in whole),
        high=end(highs) if len(highs) == len(whole) else None,
    )


def times(interval: Interval, factor: float) -> Interval:
    """All of it multiplied."""
    high = None if interval.high is None else interval.high * factor
    return Interval(low=interval.low * factor, likely=interval.likely * factor, high=high)
