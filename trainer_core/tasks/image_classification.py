"""Classification of images on Transformers' Trainer."""

from collections.abc import Iterator
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.image_batches import ImageCollator
from trainer_core.labelled import (
    LabelLoop,
    label_options,
    label_problems,
    learn_labels,
    replaces_head,
)
from trainer_core.loading import is_head
from trainer_core.loop import attach, trainer_class
from trainer_core.problems import Problem
from trainer_core.row_draws import drawn_parts, follow_epochs
from trainer_core.spec import ImageClassificationTask, TrainSpec
from trainer_core.task_facts import (
    IMAGE_PROCESSOR,
    CardText,
    Defaults,
    ModelKind,
    TaskFacts,
    block_of,
    guess_of_label,
)

FACTS = TaskFacts(
    formats=("labelled_images",),
    rows="labelled_images",
    model=ModelKind(
        "AutoModelForImageClassification",
        "a model that can classify images",
        None,
        new_head=True,
        options=label_options,
        replaces_head=replaces_head,
        reader=IMAGE_PROCESSOR,
        trains_head=True,
    ),
    defaults=Defaults(
        learning_rate=5e-5,
        adapter_learning_rate=2e-4,
        max_length=1,
        lr_scheduler_type="linear",
    ),
    card=CardText(
        pipeline_tag="image-classification",
        made_by="training a classifier of images",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_accuracy": "validation accuracy",
            "eval_f1_macro": "validation F1 (macro)",
            "eval_f1_micro": "validation F1 (micro)",
            "eval_auc": "validation AUC",
        },
    ),
    metrics=("accuracy", "f1_macro", "f1_micro", "auc"),
    guess=guess_of_label,
    over_length=("error",),
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """Nothing: images have no length, and the model's processor decides about their size."""
    return {}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Labels that do not fit each other, and what has no effect on images."""
    task = block_of(spec, ImageClassificationTask)
    yield from label_problems(task)
    if task.freeze_backbone and spec.adapter is not None:
        text = (
            "task.freeze_backbone trains the head alone, and adapter something else too: leave one "
            "of them out"
        )
        yield Problem(pointer="/task/freeze_backbone", message=text, value="true")
    of_tokens = {
        "/model/add_tokens": spec.model.add_tokens,
        "/model/add_special_tokens": spec.model.add_special_tokens,
        "/training/neftune_noise_alpha": spec.training.neftune_noise_alpha,
    }
    for pointer in (pointer for pointer, value in of_tokens.items() if value):
        name = pointer.removeprefix("/").replace("/", ".")
        text = f"{name} is about tokens, and a classifier of images has none: leave it out"
        yield Problem(pointer=pointer, message=text)


def build_trainer(context: TrainContext) -> Any:
    """Transformers' Trainer with losses that are normalised over a whole step."""
    from transformers import Trainer, TrainingArguments

    task = block_of(context.spec, ImageClassificationTask)
    model, processor = context.loaded.model, context.loaded.processor
    if task.freeze_backbone:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_head(model, name))
    train, validation = drawn_parts(context)
    trainer = trainer_class(Trainer, LabelLoop)(
        model=model,
        args=TrainingArguments(**loop_arguments(context)),
        data_collator=ImageCollator(processor, context.flow.meter, task.augmentation),
        train_dataset=train,
        eval_dataset=validation,
        processing_class=processor,
    )
    attach(trainer, context)
    follow_epochs(trainer, train)
    learn_labels(trainer, context, task)
    return trainer
