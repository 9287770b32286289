"""Rules about what is measured, when is saved, which model is the best one, and what may be
published."""

from collections.abc import Callable, Iterator
from typing import Any

from trainer_core.evaluation.answers import ANSWERED
from trainer_core.evaluation.names import BUILT_IN, TEXT_METRICS, known_names
from trainer_core.hardware import Hardware
from trainer_core.measured import can_be_given, known_metrics, reported_metrics
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
    """A best metric that the task does not measure, or that nothing asks for."""
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


def _saves(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Steps between two checkpoints, where steps do not decide."""
    wish = spec.checkpoint
    if wish.save_steps != "auto" and wish.save_strategy != "steps":
        text = (
            f"checkpoint.save_steps has no effect with save_strategy '{wish.save_strategy}': use"
            " 'steps', or leave it out"
        )
        shown = repr(wish.save_steps)
        yield Problem(pointer="/checkpoint/save_steps", message=text, value=shown)


def _gate(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A gate on a metric that neither evaluations nor the report have."""
    if spec.publish.gate is not None:
        name = spec.publish.gate.metric
        if name not in reported_metrics(spec):
            yield from _metric(spec, "/publish/gate/metric", name)


def _report(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Metrics that nobody knows, or that this task's rows never give."""
    for number, name in enumerate(spec.evaluation.metrics or ()):
        if (wrong := _of_report(spec, name)) is not None:
            text = f"evaluation.metrics[{number}] is '{name}', which {wrong}"
            pointer = f"/evaluation/metrics/{number}"
            yield Problem(pointer=pointer, message=text, value=repr(name))


def _of_report(spec: TrainSpec, name: str) -> str | None:
    known = known_names()
    if name not in known:
        close = nearest(name.removeprefix("eval_"), known)
        hint = f"did you mean '{close}'?" if close else f"known are {', '.join(known)}"
        return f"is no metric: {hint}"
    if name in TEXT_METRICS and spec.evaluation.generation is None:
        return "needs evaluation.generation"
    if not can_be_given(spec, name):
        given = ", ".join(other for other in BUILT_IN if can_be_given(spec, other))
        return (
            f"rows of task '{spec.task.type}', as it is set, never give: leave it out; they can"
            f" give {given}"
        )
    return None


def _generation(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Answers of tasks that have none."""
    wish = spec.evaluation
    if wish.generation is None:
        return
    if task_of(spec).FACTS.rows not in ANSWERED:
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
    _saves,
    _gate,
    _report,
    _generation,
    _needs_rows,
)
