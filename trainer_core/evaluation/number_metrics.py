"""Metrics of labels, numbers and losses; formulas are scikit-learn's and SciPy's.

A comparison computes each a thousand times on the same rows drawn anew. What those libraries do
once for each call (checks, sorting, looking for the labels) is done once for the rows instead:
`statistics` turns labels, scores and numbers into codes, and `value` counts them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_core.evaluation.names import MEANS
from trainer_core.evaluation.protocol import Columns, Metric


@dataclass(frozen=True)
class Mean:
    """A column's mean, each row weighted by what carries loss in it; `finish` is applied to it."""

    name: str
    column: str
    greater_is_better: bool = True
    finish: Callable[[float], float] = float

    @property
    def needs(self) -> tuple[str, ...]:
        """The column; the weights are optional."""
        return (self.column,)

    def statistics(self, columns: Columns) -> Any:
        """Value times weight, and weight."""
        values = np.asarray(columns[self.column], dtype=float)
        weights = np.asarray(columns.get("weight", np.ones(len(values))), dtype=float)
        return np.stack([values * weights, weights], axis=1)

    def value(self, statistics: Any) -> float | None:
        """Sum over sum."""
        total, weight = statistics.sum(axis=0)
        return self.finish(total / weight) if weight else None


@dataclass(frozen=True)
class Paired:
    """A number of two columns, such as labels and what the model predicts.

    `of_rows` makes of both what matters of each row, `function` the number of any rows.
    """

    name: str
    needs: tuple[str, ...]
    of_rows: Callable[[Any, Any], Any]
    function: Callable[[Any], float | None]
    greater_is_better: bool = True

    def statistics(self, columns: Columns) -> Any:
        """What matters of each row; NaN where a model gave what is no number for any of them:
        ranking would take that for the largest one."""
        values = [np.asarray(columns[name], dtype=float) for name in self.needs]
        if not all(np.isfinite(each).all() for each in values):
            return np.full(len(values[0]), np.nan)
        return self.of_rows(*values)

    def value(self, statistics: Any) -> float | None:
        """The function of it; None without rows, and where a row has no number."""
        if not len(statistics) or (statistics.dtype.kind == "f" and np.isnan(statistics).any()):
            return None
        return self.function(statistics)


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _mean(values: Any) -> float:
    return float(values.mean())


def _right(truth: Any, said: Any) -> Any:
    """Whether a row is right: of several labels, whether all of them are."""
    return (truth == said).reshape(len(truth), -1).all(axis=1)


def _labels(truth: Any, said: Any) -> Any:
    """Labels by their codes: (rows, 2); where several may hold, which ones do: (rows, 2, labels).

    Of the latter one alone counts as several do, and where it holds: so evaluations count it too.
    """
    both = np.stack([truth, said], axis=1)
    return both > 0 if both.ndim == 3 else _codes(both)


def _codes(values: Any) -> Any:
    """Each value's place among the different ones, from 0."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _hits_and_sizes(labels: Any) -> tuple[Any, Any]:
    """Of each label: how often it is predicted rightly, and its rows and predictions together."""
    truth, said = labels[:, 0], labels[:, 1]
    if labels.ndim == 3:
        return (truth & said).sum(axis=0), labels.sum(axis=(0, 1))
    sizes = np.bincount(labels.ravel())
    return np.bincount(truth[truth == said], minlength=len(sizes)), sizes


def _f1_macro(labels: Any) -> float:
    """The mean over labels; of single ones over those that occur, of several over all."""
    hits, sizes = _hits_and_sizes(labels)
    count = len(sizes) if labels.ndim == 3 else np.count_nonzero(sizes)
    return float((2 * hits / np.maximum(sizes, 1)).sum() / count)


def _f1_micro(labels: Any) -> float:
    hits, sizes = _hits_and_sizes(labels)
    return float(2 * hits.sum() / max(sizes.sum(), 1))


def _ranked(truth: Any, scores: Any) -> Any:
    return np.stack([_codes(truth), _codes(scores)], axis=1)


def _area(ranked: Any) -> float | None:
    """Chance that a row of the second label is ranked above one of the first (ties: half)."""
    truth, codes = ranked[:, 0], ranked[:, 1]
    first, last = truth.min(), truth.max()
    wrong, right = codes[truth == first], codes[truth == last]
    if first == last or len(wrong) + len(right) < len(codes):
        return None
    there = np.bincount(wrong, minlength=int(codes.max()) + 1)
    below = there.cumsum() - there / 2
    return float(below[right].sum() / (len(wrong) * len(right)))


def _squared(truth: Any, said: Any) -> Any:
    return (truth - said) ** 2


def _absolute(truth: Any, said: Any) -> Any:
    return np.abs(truth - said)


def _both(left: Any, right: Any) -> Any:
    return np.stack([left, right], axis=1)


def _pearson(both: Any) -> float | None:
    """Scaled first, so that squares of large numbers stay numbers; None where one is constant."""
    if not np.ptp(both, axis=0).all():
        return None
    apart = both - both.mean(axis=0)
    apart /= np.abs(apart).max(axis=0)
    left, right = apart[:, 0], apart[:, 1]
    return float(np.clip(left @ right / np.sqrt((left @ left) * (right @ right)), -1, 1))


def _in_order(left: Any, right: Any) -> Any:
    return np.stack([_codes(left), _codes(right)], axis=1)


def _spearman(codes: Any) -> float | None:
    """Pearson's correlation of ranks; equal values share the mean of theirs."""
    return _pearson(np.stack([_ranks(codes[:, 0]), _ranks(codes[:, 1])], axis=1))


def _ranks(codes: Any) -> Any:
    counts = np.bincount(codes)
    return (counts.cumsum() - (counts - 1) / 2)[codes]


_LABELS = ("label", "predicted")
_NUMBERS = ("number", "said")
_COSINES = ("cosine", "likeness")
NUMBERS: tuple[Metric, ...] = (
    *(Mean(name, column, greater_is_better=name != "loss") for name, column in MEANS.items()),
    Mean("perplexity", "loss", greater_is_better=False, finish=_perplexity),
    Paired("accuracy", _LABELS, _right, _mean),
    Paired("f1_macro", _LABELS, _labels, _f1_macro),
    Paired("f1_micro", _LABELS, _labels, _f1_micro),
    Paired("auc", ("label", "score"), _ranked, _area),
    Paired("mse", _NUMBERS, _squared, _mean, greater_is_better=False),
    Paired("mae", _NUMBERS, _absolute, _mean, greater_is_better=False),
    Paired("pearson", _NUMBERS, _both, _pearson),
    Paired("pearson_cosine", _COSINES, _both, _pearson),
    Paired("spearman_cosine", _COSINES, _in_order, _spearman),
)
