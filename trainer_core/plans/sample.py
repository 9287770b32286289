"""The first rows of each source, prepared as all of them would be, and what they tell of all."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.data.mixture import weights_of
from trainer_core.data.prepared import Prepared, open_prepared
from trainer_core.data.sources import sources_of
from trainer_core.plans.results import Interval
from trainer_core.plans.totals import added, rows_of
from trainer_core.prepare import prepare
from trainer_core.spec import DataSource, Launch, SplitRatio, TrainSpec

SAMPLE = "sample"
"""Where in a run's work folder the sample is prepared."""
_NO_END = 10**9  # steps


@dataclass(frozen=True)
class Sampled:
    """Prepared first rows; `total` counts the rows that training reads, None: nobody knows."""

    data: Prepared
    total: Interval | None


def sampled(
    launch: Launch, secrets: Mapping[str, str], first: int, emit: Callable[..., Any] | None
) -> Sampled:
    """Prepare about `first` training rows of a launch with a resolved spec; raises as `prepare`."""
    work = Path(launch.paths.work)
    folder = work / SAMPLE
    shutil.rmtree(folder, ignore_errors=True)
    spec = launch.spec
    sources = sources_of(launch, secrets, work / "sources")["train"]
    counts = [rows_of(each, launch.known_rows.get(each.key)) for each in sources]
    wanted = [max(1, round(first * share)) for share in _shares(spec, counts)]
    few = launch.model_copy(update={"spec": _with_first(spec, wanted)})
    prepare(few, folder, emit=emit, secrets=secrets)
    return Sampled(open_prepared(folder), _total(spec, counts))


def _shares(spec: TrainSpec, counts: Sequence[Interval | None]) -> list[float]:
    """The part that each source has in training: by its weight, or else by its rows."""
    found = weights_of(spec) or [0.0 if count is None else count.likely for count in counts]
    if None in counts and weights_of(spec) is None:
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
    kept = 1 - held.split_ratio if isinstance(held, SplitRatio) else 1.0
    return times(total, kept)


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
