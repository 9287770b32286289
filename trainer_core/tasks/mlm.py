"""Masked language modelling on plain documents, on Transformers' Trainer: continued or new."""

from collections.abc import Iterator
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.asked_tokens import AskedTokens
from trainer_core.context import TrainContext
from trainer_core.errors import InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.loop import Scores, attach, trainer_class
from trainer_core.masking import MaskingCollator, MaskRules
from trainer_core.measures import MaskedScores
from trainer_core.problems import Problem
from trainer_core.row_draws import drawn_parts, follow_epochs
from trainer_core.spec import MlmTask, TrainSpec
from trainer_core.task_facts import (
    OVER_LENGTH,
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_token,
)
from trainer_core.task_rules import from_config_problems


def _from_config(spec: TrainSpec) -> dict[str, Any] | None:
    return block_of(spec, MlmTask).from_config


def _joins(spec: TrainSpec) -> str:
    alone = block_of(spec, MlmTask).line_by_line
    return "" if alone else "task.line_by_line is false: set it to true"


FACTS = TaskFacts(
    formats=("text",),
    rows="masked_documents",
    model=ModelKind(
        "AutoModelForMaskedLM",
        "a masked language model",
        None,
        new_head=True,
        from_config=_from_config,
    ),
    defaults=Defaults(
        learning_rate=5e-5,
        adapter_learning_rate=2e-4,
        scratch_learning_rate=1e-4,
        max_length=512,
        lr_scheduler_type="linear",
        over_length="split",
    ),
    card=CardText(
        pipeline_tag="fill-mask",
        made_by="masked language modelling on plain documents",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_perplexity": "validation perplexity",
            "eval_masked_accuracy": "validation accuracy of masked tokens",
        },
    ),
    metrics=("perplexity", "masked_accuracy"),
    guess=guess_of_token,
    over_length=(*OVER_LENGTH, "split"),
    joins=_joins,
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a row."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """What begins at random and does not go with an adapter, or with a model's weights."""
    task = block_of(spec, MlmTask)
    yield from from_config_problems(spec, task.from_config)
    if task.train_tokenizer is not None and task.from_config is None:
        text = (
            "task.train_tokenizer makes another vocabulary, which the weights of "
            "model.name_or_path do not know: set task.from_config too, or leave it out"
        )
        yield Problem(pointer="/task/train_tokenizer", message=text, value="an object")


def build_trainer(context: TrainContext) -> Any:
    """Transformers' Trainer with masks of ours and losses normalised over a whole step.

    Raises InvalidSpec for rows that are longer than the model's positions.
    """
    from transformers import Trainer, TrainingArguments

    task = block_of(context.spec, MlmTask)
    model, tokenizer = context.loaded.model, context.loaded.tokenizer
    most = context.data.report.max_length
    _require_positions(model, most)
    train, validation = drawn_parts(context)
    trainer = trainer_class(Trainer, MaskedLoop)(
        model=model,
        args=TrainingArguments(**loop_arguments(context)),
        data_collator=MaskingCollator(
            MaskRules.of(tokenizer, task.mlm_probability),
            tokenizer.pad_token_id,
            context.flow.meter,
            most if task.pad_to_max_length else None,
        ),
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
    )
    attach(trainer, context)
    follow_epochs(trainer, train)
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the items of a step
    return trainer


class MaskedLoop(AskedTokens):
    """The loss is the mean over all masked tokens of a step."""

    def scores(self) -> Scores:
        """Perplexity and accuracy of the masked tokens."""
        return MaskedScores()


def _require_positions(model: Any, length: int) -> None:
    """Learned positions end somewhere; some kinds count them from behind the pad token's id."""
    from torch.nn import Embedding

    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, Embedding):
            most = module.num_embeddings - (
                0 if module.padding_idx is None else 1 + module.padding_idx
            )
            if length > most:
                raise InvalidSpec(
                    f"task.max_length is {length}, but the model has {most} positions: set it to "
                    f"{most} or less",
                    "task.max_length",
                )
