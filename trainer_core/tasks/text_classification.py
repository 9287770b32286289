"""Classification of texts or pairs of texts, and regression, on Transformers' Trainer."""

from collections.abc import Iterator
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.labelled import (
    MULTI,
    NUMBER,
    SINGLE,
    LabelLoop,
    label_options,
    label_problems,
    learn_labels,
    replaces_head,
)
from trainer_core.loop import attach, trainer_class
from trainer_core.padding import PaddedCollator
from trainer_core.problems import Problem
from trainer_core.spec import TextClassificationTask, TrainSpec
from trainer_core.task_facts import (
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_label,
)

FACTS = TaskFacts(
    formats=("classification",),
    rows="labelled_texts",
    model=ModelKind(
        "AutoModelForSequenceClassification",
        "a model that can classify texts",
        "SEQ_CLS",
        new_head=True,
        options=label_options,
        replaces_head=replaces_head,
    ),
    defaults=Defaults(
        learning_rate=5e-5,
        adapter_learning_rate=2e-4,
        max_length=128,
        lr_scheduler_type="linear",
    ),
    card=CardText(
        pipeline_tag="text-classification",
        made_by="training a classifier of texts",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_accuracy": "validation accuracy",
            "eval_f1_macro": "validation F1 (macro)",
            "eval_f1_micro": "validation F1 (micro)",
            "eval_auc": "validation AUC",
            "eval_mse": "validation mean squared error",
            "eval_pearson": "validation Pearson correlation",
        },
    ),
    metrics=("accuracy", "f1_macro", "f1_micro", "auc", "mse", "mae", "pearson"),
    guess=guess_of_label,
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a text."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Fields that have no effect with the problem type, and lists that do not fit each other."""
    task = block_of(spec, TextClassificationTask)
    useless = {
        "label_separator": task.label_separator is not None and task.problem_type != MULTI,
        "threshold": task.differs("threshold") and task.problem_type != MULTI,
        "label_smoothing_factor": task.label_smoothing_factor > 0 and task.problem_type != SINGLE,
        "label_names": task.label_names is not None and task.problem_type == NUMBER,
        "class_weights": task.class_weights != "none" and task.problem_type == NUMBER,
    }
    for name in (name for name, is_set in useless.items() if is_set):
        text = f"task.{name} has no effect with problem_type '{task.problem_type}': leave it out"
        yield Problem(pointer=f"/task/{name}", message=text)
    yield from label_problems(task)


def build_trainer(context: TrainContext) -> Any:
    """Transformers' Trainer with losses that are normalised over a whole step."""
    from transformers import Trainer, TrainingArguments

    model, tokenizer = context.loaded.model, context.loaded.tokenizer
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    trainer = trainer_class(Trainer, LabelLoop)(
        model=model,
        args=TrainingArguments(**loop_arguments(context)),
        data_collator=PaddedCollator(tokenizer.pad_token_id, context.flow.meter),
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=tokenizer,
    )
    attach(trainer, context)
    learn_labels(trainer, context, block_of(context.spec, TextClassificationTask))
    return trainer
