"""The table of metrics: built-in ones, and those of installed packages."""

from collections.abc import Iterable, Sequence

from trainer_core.errors import InvalidSpec
from trainer_core.evaluation.names import plugged
from trainer_core.evaluation.number_metrics import NUMBERS
from trainer_core.evaluation.protocol import Columns, Metric
from trainer_core.evaluation.text_metrics import TEXT

_PARTS = ("name", "needs", "greater_is_better", "statistics", "value")
METRICS: dict[str, Metric] = {metric.name: metric for metric in (*NUMBERS, *TEXT)}


def chosen(names: Sequence[str] | None) -> list[Metric]:
    """The metrics of those names, None: every built-in one; raises InvalidSpec.

    An entry point names an object of the shape `Metric`, or a class that makes one without
    arguments.
    """
    if names is None:
        return list(METRICS.values())
    return [METRICS[name] if name in METRICS else _load(name) for name in names]


def _load(name: str) -> Metric:
    entry = plugged().get(name)
    if entry is None:
        raise InvalidSpec(f"there is no metric '{name}'", "evaluation.metrics")
    found = entry.load()
    metric: Metric = found() if isinstance(found, type) else found
    lacking = [part for part in _PARTS if not hasattr(metric, part)]
    if lacking:
        raise InvalidSpec(
            f"the metric '{name}' of {entry.value} is none: it has no {', '.join(lacking)}",
            "evaluation.metrics",
        )
    return metric


def fitting(metric: Metric, groups: Iterable[Columns]) -> Columns | None:
    """The rows that have every column that a metric needs; None where there are none."""
    for columns in groups:
        if all(name in columns for name in metric.needs):
            return columns
    return None
