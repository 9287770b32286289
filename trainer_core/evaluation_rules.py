"""Rules about what is measured, which model is the best one, and what may be published."""

from collections.abc import Callable, Iterator
from typing import Any

from trainer_core.evaluation.answers import ANSWERED
from trainer_core.evaluation.names import TEXT_METRICS, known_names
from trainer_core.hardware import Hardware
from trainer_core.measured import known_metrics, reported_metrics
from trainer_core.problems import Problem, nearest
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of


def _metric(spec: TrainSpec, pointer: str, name: str | None) -> Iterator[Problem]:
    known = known_metrics(spec)
    if name is None or name in known:
        return
    close = nearest(name.removeprefix("eval_"), known)
    hint = f"did you mean '{close}'?" if close else f"it measures {', '.join(known)}"
    field = pointer.removeprefix("/").replace("/", ".")
    text = f"{field} is '{name}', which task '{spec.task.type}' does not measure: {hint}"
    yield Problem(pointer=pointer, message=text, value=repr(name))


def _best(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    wish = spec.checkpoint
    yield from _metric(spec, "/checkpoint/metric_for_best_model", wish.metric_for_best_model)
    if wish.load_best_model_at_end or wish.early_stopping is not None:
        return
    for name in ("metric_for_best_model", "greater_is_better"):
        if (value := getattr(wish, name)) is not None:
            text = (
                f"checkpoint.{name} has no effect without checkpoint.load_best_model_at_end or"
                " checkpoint.early_stopping: set one of them, or leave it out"
            )
            yield Problem(pointer=f"/checkpoint/{name}", message=text, value=repr(value))


def _gate(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    if spec.publish.gate is not None:
        name = spec.publish.gate.metric
        if name not in reported_metrics(spec):
            yield from _metric(spec, "/publish/gate/metric", name)


def _report(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Metrics that nobody knows, and answers of tasks that have none."""
    wish, rows = spec.evaluation, task_of(spec).FACTS.rows
    known = known_names()
    for number, name in enumerate(wish.metrics or ()):
        pointer = f"/evaluation/metrics/{number}"
        if name not in known:
            close = nearest(name.removeprefix("eval_"), known)
            hint = f"did you mean '{close}'?" if close else f"known are {', '.join(known)}"
            text = f"evaluation.metrics[{number}] is '{name}', which is no metric: {hint}"
            yield Problem(pointer=pointer, message=text, value=repr(name))
        elif name in TEXT_METRICS and wish.generation is None:
            text = f"evaluation.metrics[{number}] is '{name}', which needs evaluation.generation"
            yield Problem(pointer=pointer, message=text, value=repr(name))
    if wish.generation is None:
        return
    if rows not in ANSWERED:
        text = (
            f"evaluation.generation needs rows with prompts and answers, which task"
            f" '{spec.task.type}' has not: leave it out"
        )
        yield Problem(pointer="/evaluation/generation", message=text)
    for name in ("temperature", "top_p"):
        value = getattr(wish.generation, name)
        if value != 1.0 and not wish.generation.do_sample:
            text = f"evaluation.generation.{name} has no effect without do_sample: set it to true"
            yield Problem(pointer=f"/evaluation/generation/{name}", message=text, value=repr(value))


def _needs_rows(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """What depends on evaluations cannot do without them."""
    if spec.data.validation is not None and spec.evaluation.strategy != "no":
        return
    missing = "data.validation" if spec.data.validation is None else "evaluation.strategy"
    wanted: dict[str, Any] = {
        "/checkpoint/load_best_model_at_end": spec.checkpoint.load_best_model_at_end,
        "/checkpoint/early_stopping": spec.checkpoint.early_stopping,
        "/evaluation/compare_base": spec.evaluation.compare_base,
        "/evaluation/metrics": spec.evaluation.metrics,
        "/evaluation/generation": spec.evaluation.generation,
        "/publish/gate": spec.publish.gate,
    }
    for pointer in (pointer for pointer, value in wanted.items() if value):
        field = pointer.removeprefix("/").replace("/", ".")
        text = (
            f"{field} depends on evaluations, and there are none without {missing}: add validation"
            " rows (data.validation: {split_ratio: 0.1} holds some out) and leave"
            " evaluation.strategy out, or leave this out"
        )
        yield Problem(pointer=pointer, message=text)


EVALUATION_RULES: tuple[Callable[[TrainSpec, Hardware | None], Iterator[Problem]], ...] = (
    _best,
    _gate,
    _report,
    _needs_rows,
)
