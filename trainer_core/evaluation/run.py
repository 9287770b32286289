"""Evaluating one model: its task's own measures, every row, and the answers that it writes."""

from typing import Any

from trainer_core.context import TrainContext
from trainer_core.evaluation.answers import Question, answer, questions, told
from trainer_core.evaluation.base import Evaluated
from trainer_core.evaluation.recorder import record
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of


def reports(spec: TrainSpec) -> bool:
    """Whether a run evaluates once more at its end, row by row, and reports on it."""
    wish = spec.evaluation
    has_rows = spec.data.validation is not None and wish.strategy != "no"
    wanted = wish.compare_base or wish.metrics is not None or wish.generation is not None
    return has_rows and wanted


def evaluate(trainer: Any, context: TrainContext, measured: dict[str, Any]) -> Evaluated:
    """Evaluate the trainer's model as it is; `measured` are the measures that are known already.

    Raises Interrupted when a signal asks to stop.
    """
    wish = context.spec.evaluation.generation
    plain = {name.removeprefix("eval_"): float(value) for name, value in measured.items()}
    answers = []
    trainer.flow.where = "evaluating"
    if wish is not None:
        answers = answer(trainer, context.loaded.tokenizer, wish, questions_of(context))
    groups = record(trainer)
    trainer.flow.where = "training"
    if answers:
        groups = [*groups, {"generated": answers, "reference": references_of(context)}]
    return Evaluated(plain, groups, answers)


def questions_of(context: TrainContext) -> list[Question]:
    """The questions that `evaluation.generation` asks; [] without it."""
    wish = context.spec.evaluation.generation
    if wish is None:
        return []
    kind = task_of(context.spec).FACTS.rows
    return questions(context.data.validation, kind, wish.num_samples)


def references_of(context: TrainContext) -> list[str]:
    """The rows' own answers to them."""
    tokenizer = context.loaded.tokenizer
    return [told(tokenizer, question.reference) for question in questions_of(context)]
