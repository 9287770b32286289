"""The table of metrics: built-in ones, and those of installed packages."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.evaluation.names import plugged
from trainer_core.evaluation.number_metrics import NUMBERS
from trainer_core.evaluation.protocol import COLUMNS, Columns, Metric
from trainer_core.evaluation.text_metrics import TEXT
from trainer_core.spec import TrainSpec

_PARTS = ("name", "needs", "greater_is_better", "statistics", "value")
_ROWS = 8
_LABELS = ("label", "predicted")
_TEXTS = ("generated", "reference")
METRICS: dict[str, Metric] = {metric.name: metric for metric in (*NUMBERS, *TEXT)}


def chosen(names: Sequence[str] | None) -> list[Metric]:
    """The metrics of those names, None: every built-in one; raises InvalidSpec.

    An entry point names an object of the shape `Metric`, or a class that makes one without
    arguments.
    """
    if names is None:
        return list(METRICS.values())
    return [METRICS[name] if name in METRICS else _load(name) for name in names]


def try_out(spec: TrainSpec) -> None:
    """Compute the metrics of installed packages that a spec names, on a few made-up rows.

    What is broken about one is so known before a model is loaded. Raises InvalidSpec. One that
    needs columns which only a library gives (`protocol.COLUMNS` knows the others), or texts, whose
    form it may rely on (JSON, say), is loaded alone.
    """
    several = getattr(spec.task, "problem_type", "").startswith("multi")
    for name in (n for n in spec.evaluation.metrics or () if n not in METRICS):
        metric = _load(name)
        rows = fitting(metric, [_made_up(several=several)])
        if rows is None:
            continue
        try:
            value: Any = metric.value(metric.statistics(rows))
        except Exception as error:
            raise _broken(name, "cannot be computed", error) from error
        if not (value is None or isinstance(value, Real)):
            reason = TypeError(f"its value is no number but {type(value).__name__}")
            raise _broken(name, "cannot be computed", reason)


def _made_up(*, several: bool) -> Columns:
    """Rows of each column of numbers or labels that every task names the same way."""
    numbers = [i / _ROWS for i in range(_ROWS)]
    labels: list[Any] = [i % 2 for i in range(_ROWS)]
    if several:
        labels = [[label, 1 - label] for label in labels]
    columns = [name for name in COLUMNS if name not in _TEXTS]
    known: dict[str, Any] = dict.fromkeys(columns, numbers)
    return known | dict.fromkeys(_LABELS, labels)


def _load(name: str) -> Metric:
    entry = plugged().get(name)
    if entry is None:
        raise InvalidSpec(f"there is no metric '{name}'", "evaluation.metrics")
    try:
        found = entry.load()
        metric: Metric = found() if isinstance(found, type) else found
    except Exception as error:
        raise _broken(name, "cannot be loaded", error) from error
    lacking = [part for part in _PARTS if not hasattr(metric, part)]
    if lacking:
        raise InvalidSpec(
            f"the metric '{name}' of {entry.value} is none: it has no {', '.join(lacking)}",
            "evaluation.metrics",
        )
    return metric


def _broken(name: str, what: str, error: Exception) -> InvalidSpec:
    entry = plugged()[name]
    package = entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
    return InvalidSpec(
        f"the metric '{name}' of the package {package} {what} ({type(error).__name__}: {error}):"
        " mend or update the package, or take the metric out of evaluation.metrics",
        "evaluation.metrics",
    )


def fitting(metric: Metric, groups: Iterable[Columns]) -> Columns | None:
    """The rows that have every column that a metric needs; None where there are none."""
    for columns in groups:
        if all(name in columns for name in metric.needs):
            return columns
    return None
