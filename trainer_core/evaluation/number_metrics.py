"""Metrics of labels, numbers and losses; formulas are scikit-learn's and SciPy's."""

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
    """A function of two columns as a whole, such as labels and what the model predicts."""

    name: str
    needs: tuple[str, ...]
    function: Callable[[Any, Any], float | None]
    greater_is_better: bool = True

    def statistics(self, columns: Columns) -> Any:
        """Both columns side by side: (rows, 2) or, with several labels, (rows, 2, labels)."""
        return np.stack([np.asarray(columns[name], dtype=float) for name in self.needs], axis=1)

    def value(self, statistics: Any) -> float | None:
        """The function of both."""
        return self.function(statistics[:, 0], statistics[:, 1]) if len(statistics) else None


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _accuracy(truth: Any, said: Any) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, said))


def _f1(average: str) -> Callable[[Any, Any], float]:
    def score(truth: Any, said: Any) -> float:
        from sklearn.metrics import f1_score

        return float(f1_score(truth, said, average=average, zero_division=0.0))

    return score


def _area(truth: Any, scores: Any) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, scores)) if len(np.unique(truth)) == 2 else None


def _squared(truth: Any, said: Any) -> float:
    return float(((truth - said) ** 2).mean())


def _absolute(truth: Any, said: Any) -> float:
    return float(np.abs(truth - said).mean())


def _correlation(kind: str) -> Callable[[Any, Any], float | None]:
    def score(left: Any, right: Any) -> float | None:
        from scipy import stats

        if np.ptp(left) == 0 or np.ptp(right) == 0:
            return None
        function = stats.spearmanr if kind == "spearman" else stats.pearsonr
        return float(function(left, right).statistic)

    return score


_LABELS = ("label", "predicted")
_NUMBERS = ("number", "said")
_COSINES = ("cosine", "likeness")
NUMBERS: tuple[Metric, ...] = (
    *(Mean(name, column, greater_is_better=name != "loss") for name, column in MEANS.items()),
    Mean("perplexity", "loss", greater_is_better=False, finish=_perplexity),
    Paired("accuracy", _LABELS, _accuracy),
    Paired("f1_macro", _LABELS, _f1("macro")),
    Paired("f1_micro", _LABELS, _f1("micro")),
    Paired("auc", ("label", "score"), _area),
    Paired("mse", _NUMBERS, _squared, greater_is_better=False),
    Paired("mae", _NUMBERS, _absolute, greater_is_better=False),
    Paired("pearson", _NUMBERS, _correlation("pearson")),
    Paired("pearson_cosine", _COSINES, _correlation("pearson")),
    Paired("spearman_cosine", _COSINES, _correlation("spearman")),
)
