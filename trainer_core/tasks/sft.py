"""Supervised fine-tuning of a causal language model, on TRL's SFTTrainer."""

import copy
from collections.abc import Iterator
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.kl import KlLoop
from trainer_core.problems import Problem
from trainer_core.spec import SftTask, TrainSpec
from trainer_core.task_facts import (
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_token,
)
from trainer_core.task_rules import (
    dotted,
    lasting_base_problems,
    sources_with_pointers,
    template_problem,
)
from trainer_core.token_trainer import token_trainer


def _frozen_copies(spec: TrainSpec) -> int:
    return int(block_of(spec, SftTask).kl_beta > 0 and not spec.adapts)


def _joins(spec: TrainSpec) -> str:
    task = block_of(spec, SftTask)
    wrapped = task.packing and task.packing_strategy == "wrapped"
    return "task.packing_strategy is 'wrapped': use 'bfd'" if wrapped else ""


FACTS = TaskFacts(
    formats=(
        "messages",
        "sharegpt",
        "alpaca",
        "query_response",
        "prompt_completion",
        "segments",
        "text",
    ),
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
    metrics=("mean_token_accuracy", "kl"),
    guess=guess_of_token,
    frozen_copies=_frozen_copies,
    streams=True,
    joins=_joins,
)
_CONVERSATIONS_ONLY = ("assistant", "last_assistant", "completion")


def open_fields(spec: TrainSpec) -> dict[str, Any]:
    """The length of a row, and padding-free batches where the attention is one for them.

    `loss_on` stays open, because the data decide.
    """
    return {"max_length": FACTS.defaults.max_length, "padding_free": _is_varlen(spec)}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """A template that is none, turns wanted of plain text, and fields without effect."""
    task = block_of(spec, SftTask)
    for pointer, source in sources_with_pointers(spec):
        if source.format == "text" and task.loss_on in _CONVERSATIONS_ONLY:
            text = (
                f"task.loss_on is '{task.loss_on}', but {dotted(pointer)} holds plain text, which "
                "has no turns: leave task.loss_on out, or say 'all'"
            )
            yield Problem(pointer="/task/loss_on", message=text, value=repr(task.loss_on))
    for field, message in _together(task, spec):
        yield Problem(pointer=f"/task/{field}", message=f"task.{field} {message}")
    if task.kl_beta:
        yield from lasting_base_problems(spec, "set task.kl_beta to 0")
    yield from template_problem(task.chat_template)


def _together(task: SftTask, spec: TrainSpec) -> Iterator[tuple[str, str]]:
    if task.padding_free and not _is_varlen(spec):
        yield (
            "padding_free",
            "is true, but only an attention of variable length keeps the samples of one row apart "
            "at no cost: set model.attn_implementation to 'flash_attention_2' (a GPU with bf16 or "
            "fp16), or use task.packing, which runs everywhere",
        )
    if task.differs("packing_strategy") and not task.packing:
        yield "packing_strategy", "has no effect without task.packing: set it to true"
    elif task.packing_strategy == "wrapped" and task.loss_on != "all":
        yield (
            "packing_strategy",
            "is 'wrapped', which cuts samples in two and lets them see each other, so that answers "
            "lose their questions: use 'bfd', or set task.loss_on to 'all'",
        )
    if task.differs("train_on_eot") and task.loss_on == "all":
        yield "train_on_eot", "has no effect with loss_on 'all', which trains every token"


def _is_varlen(spec: TrainSpec) -> bool:
    return spec.model.attn_implementation.startswith("flash")


def build_trainer(context: TrainContext) -> Any:
    """TRL's SFTTrainer on prepared tokens, perhaps held close to the model it began with."""
    task = block_of(context.spec, SftTask)
    loss = "dft" if task.loss_type == "dft" else "nll"
    if not task.kl_beta:
        return token_trainer(context, loss_type=loss)
    reference = None
    if not context.spec.adapts:
        reference = copy.deepcopy(context.loaded.model).requires_grad_(False).eval()
    trainer = token_trainer(context, KlLoop, loss_type=loss)
    trainer.kl_beta = task.kl_beta
    trainer.reference = reference if reference is None else reference.to(trainer.args.device)
    return trainer
