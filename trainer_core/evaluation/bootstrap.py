"""How sure a difference between two models on the same rows is: the paired bootstrap."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trainer_core.evaluation.protocol import Columns, Metric

RESAMPLES = 1000
CONFIDENCE = 0.95
_FEWEST = 8
"""With fewer rows a resampling says nothing."""


@dataclass(frozen=True)
class Compared:
    """One metric of a model, and of another one on the same rows where there is one.

    `interval` has the difference's ends; `better` says whether all of it is a gain (True) or a
    loss (False), and is None where it reaches over zero.
    """

    value: float | None
    rows: int
    base: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    better: bool | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON; what is not known is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _nothing() -> None:
    return None


def compare(
    metric: Metric,
    ours: Columns,
    base: Columns | None,
    seed: int,
    between: Callable[[], None] = _nothing,
) -> Compared:
    """A metric on our rows, and what changed against `base`, whose rows are the same in order.

    The interval is the percentile interval of the difference under resampling of rows, both
    models on the same ones (Efron and Tibshirani 1993, chapter 13; for text metrics Koehn 2004):
    1000 resamplings, 95 %. It says how much the choice of rows matters, and nothing of how another
    training would end. `between` is called before each resampling: all of them may take long.
    """
    statistics = metric.statistics(ours)
    value, rows = metric.value(statistics), len(statistics)
    if base is None or value is None:
        return Compared(value, rows)
    others = metric.statistics(base)
    before = metric.value(others)
    if before is None or len(others) != rows:
        return Compared(value, rows)
    interval = None
    if rows >= _FEWEST:
        interval = _interval(metric, (statistics, others), seed, between)
    better = None
    if interval is not None and (interval[0] > 0 or interval[1] < 0):
        better = (interval[0] > 0) == metric.greater_is_better
    return Compared(value, rows, before, value - before, interval, better)


def _interval(
    metric: Metric, statistics: tuple[Any, Any], seed: int, between: Callable[[], None]
) -> tuple[float, float] | None:
    draw = np.random.default_rng(seed)
    ours, base = statistics
    differences = []
    for _ in range(RESAMPLES):
        between()
        chosen = draw.integers(0, len(ours), len(ours))
        one, other = metric.value(ours[chosen]), metric.value(base[chosen])
        if one is not None and other is not None:
            differences.append(one - other)
    if not differences:
        return None
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(differences, [outside, 1 - outside])
    return float(low), float(high)
