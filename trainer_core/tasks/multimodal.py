"""Supervised fine-tuning of vision-language models on Transformers' Trainer."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.asked_tokens import AskedTokens
from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.loop import Scores, attach, trainer_class
from trainer_core.model_parts import freeze, frozen_parts, outside_of
from trainer_core.problems import Problem
from trainer_core.spec import MultimodalTask, TrainSpec
from trainer_core.task_facts import (
    ADAPTERS,
    PROCESSOR,
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_token,
)
from trainer_core.task_rules import template_problem
from trainer_core.token_scores import TokenScores
from trainer_core.visual_batches import VisualCollator

_MAX_PIXELS = 768 * 768
_PARTS = ("freeze_vision_tower", "freeze_projector", "freeze_language_model")


def _passed_by(spec: TrainSpec) -> str | None:
    return outside_of(frozen_parts(block_of(spec, MultimodalTask)))


FACTS = TaskFacts(
    formats=("image_messages", "image_prompt_completion"),
    rows="pictured_texts",
    model=ModelKind(
        "AutoModelForImageTextToText",
        "a vision-language model",
        "CAUSAL_LM",
        reader=PROCESSOR,
        passed_by=_passed_by,
    ),
    defaults=Defaults(learning_rate=1e-5, adapter_learning_rate=1e-4, max_length=2048),
    card=CardText(
        pipeline_tag="image-text-to-text",
        made_by="supervised fine-tuning on texts with images",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_perplexity": "validation perplexity",
            "eval_mean_token_accuracy": "validation token accuracy",
        },
    ),
    adapters=ADAPTERS
    | {
        "vera": "PEFT cannot keep VeRA out of the parts that stay as they are: use lora",
        "freeze": "task.freeze_vision_tower, freeze_projector and freeze_language_model say which "
        "parts are trained: leave adapter out",
    },
    metrics=("perplexity", "mean_token_accuracy"),
    guess=guess_of_token,
    over_length=("error", "drop"),
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a row, and the size above which images are made smaller."""
    return {"max_length": FACTS.defaults.max_length, "max_pixels": _MAX_PIXELS}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """A template that is none, and a model of which nothing is trained."""
    task = block_of(spec, MultimodalTask)
    if all(getattr(task, name) for name in _PARTS):
        text = (
            "task.freeze_vision_tower, freeze_projector and freeze_language_model together leave "
            "nothing to train: set one of them to false"
        )
        yield Problem(pointer="/task/freeze_language_model", message=text, value="true")
    yield from template_problem(task.chat_template)


def build_trainer(context: TrainContext) -> Any:
    """Transformers' Trainer on the processor's inputs; parts of the model may stay as they are."""
    from transformers import Trainer, TrainingArguments

    task = block_of(context.spec, MultimodalTask)
    processor = context.loaded.processor
    freeze(context.loaded.model, frozen_parts(task))
    trainer = trainer_class(Trainer, AnswerLoop)(
        model=context.loaded.model,
        args=TrainingArguments(**loop_arguments(context)),
        data_collator=VisualCollator(processor, context.flow.meter),
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=processor,
    )
    attach(trainer, context)
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the items of a step
    return trainer


class AnswerLoop(AskedTokens):
    """The loss is the mean over all trained tokens of a step."""

    shift = 1

    def said(self, model: Any, given: Mapping[str, Any]) -> Any:
        """Logits without a cache of keys and values."""
        return model(**given, use_cache=False).logits

    def scores(self) -> Scores:
        """Perplexity and accuracy of the trained tokens."""
        return TokenScores()
