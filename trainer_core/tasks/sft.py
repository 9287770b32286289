"""Supervised fine-tuning of a causal language model, on TRL's SFTTrainer."""

from collections.abc import Iterator
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import SftTask, TrainSpec
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import dotted, sources_with_pointers, template_problem
from trainer_core.token_trainer import token_trainer

FACTS = TaskFacts(
    formats=("messages", "sharegpt", "alpaca", "prompt_completion", "text"),
    rows="tokens",
    model=ModelKind("AutoModelForCausalLM", "a causal language model", "CAUSAL_LM"),
    defaults=Defaults(learning_rate=2e-5, adapter_learning_rate=2e-4, max_length=1024),
    card=CardText(
        pipeline_tag="text-generation",
        made_by="supervised fine-tuning",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_mean_token_accuracy": "validation token accuracy",
        },
    ),
)
_CONVERSATIONS_ONLY = ("assistant", "last_assistant", "completion")


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a row; `loss_on` stays open, because the data decide."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """A template that is none, and turns wanted of plain text."""
    task = block_of(spec, SftTask)
    for pointer, source in sources_with_pointers(spec):
        if source.format == "text" and task.loss_on in _CONVERSATIONS_ONLY:
            text = (
                f"task.loss_on is '{task.loss_on}', but {dotted(pointer)} holds plain text, which "
                "has no turns: leave task.loss_on out, or say 'all'"
            )
            yield Problem(pointer="/task/loss_on", message=text, value=repr(task.loss_on))
    yield from template_problem(task.chat_template)


def build_trainer(context: TrainContext) -> Any:
    """TRL's SFTTrainer on prepared tokens."""
    return token_trainer(context)
