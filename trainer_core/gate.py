"""The gate before publishing: a model that does not reach it is not published."""

from collections.abc import Mapping
from typing import Any

from trainer_core.errors import BelowGate, InvalidSpec
from trainer_core.evaluation.metrics import chosen
from trainer_core.evaluation.names import plugged
from trainer_core.measured import greater_is_better
from trainer_core.spec import Gate

_FIELD = "publish.gate"


def require_gate(gate: Gate, measured: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    """Raise BelowGate unless the measured values reach the gate.

    `measured` are the newest metrics of the model to publish, `base` those of the model before the
    first step; names begin with `eval_`. Raises InvalidSpec where the rows do not give the metric.
    """
    value = _value(measured, gate.metric)
    greater = _greater_is_better(gate.metric)
    if gate.threshold is not None and not _reaches(value - gate.threshold, greater=greater):
        most = "at least" if greater else "at most"
        raise BelowGate(
            f"the model is not published: its {gate.metric} is {value:.6g}, and"
            f" publish.gate.threshold wants {most} {gate.threshold:.6g}",
            _FIELD,
        )
    if gate.min_improvement is None:
        return
    before = _value(base, gate.metric)
    gained = value - before if greater else before - value
    if not gained >= gate.min_improvement:
        raise BelowGate(
            f"the model is not published: its {gate.metric} is {value:.6g}, after {before:.6g}"
            f" before the first step: a gain of {gained:.6g}, and"
            f" publish.gate.min_improvement wants {gate.min_improvement:.6g}",
            _FIELD,
        )


def _greater_is_better(metric: str) -> bool:
    """A metric of an installed package says it itself."""
    if metric in plugged():
        return chosen([metric])[0].greater_is_better
    return greater_is_better(metric)


def _reaches(above: float, *, greater: bool) -> bool:
    return above >= 0 if greater else above <= 0


def _value(measured: Mapping[str, Any], metric: str) -> float:
    value = measured.get(f"eval_{metric}")
    if value is None:
        names = ", ".join(sorted(n.removeprefix("eval_") for n in measured if n[:5] == "eval_"))
        raise InvalidSpec(
            f"publish.gate.metric is '{metric}', which these validation rows do not give; they give"
            f" {names}",
            "publish.gate.metric",
        )
    return float(value)
