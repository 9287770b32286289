"""Classification of texts or pairs of texts, and regression, on Transformers' Trainer."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.errors import InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.loop import ExactLoop, Scores, attach, trainer_class
from trainer_core.measures import LabelScores, NumberScores
from trainer_core.padding import PaddedCollator
from trainer_core.problems import Problem
from trainer_core.spec import TextClassificationTask, TrainSpec
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of

_SINGLE, _MULTI, _NUMBER = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


def _options(spec: TrainSpec, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The label map, which the model's configuration keeps."""
    task = block_of(spec, TextClassificationTask)
    if task.problem_type == _NUMBER:
        return {"num_labels": 1, "problem_type": _NUMBER}
    names = facts.get("labels") or task.label_names or []
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": task.problem_type,
    }


def _replaces_head(spec: TrainSpec) -> bool:
    return block_of(spec, TextClassificationTask).ignore_mismatched_sizes


FACTS = TaskFacts(
    formats=("classification",),
    rows="labelled_texts",
    model=ModelKind(
        "AutoModelForSequenceClassification",
        "a model that can classify texts",
        "SEQ_CLS",
        new_head=True,
        options=_options,
        replaces_head=_replaces_head,
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
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """The length of a text."""
    return {"max_length": FACTS.defaults.max_length}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Fields that have no effect with the problem type, and lists that do not fit each other."""
    task = block_of(spec, TextClassificationTask)
    useless = {
        "label_separator": task.label_separator is not None and task.problem_type != _MULTI,
        "threshold": task.differs("threshold") and task.problem_type != _MULTI,
        "label_smoothing_factor": task.label_smoothing_factor > 0 and task.problem_type != _SINGLE,
        "label_names": task.label_names is not None and task.problem_type == _NUMBER,
        "class_weights": task.class_weights != "none" and task.problem_type == _NUMBER,
    }
    for name in (name for name, is_set in useless.items() if is_set):
        text = f"task.{name} has no effect with problem_type '{task.problem_type}': leave it out"
        yield Problem(pointer=f"/task/{name}", message=text)
    names, weights = task.label_names, task.class_weights
    if names is not None and len(set(names)) < len(names):
        text = "task.label_names names a label twice: name each once"
        yield Problem(pointer="/task/label_names", message=text, value="a list")
    if isinstance(weights, list) and names is not None and len(weights) != len(names):
        yield Problem(pointer="/task/class_weights", message=_misfit(weights, names))


def _misfit(weights: list[float], names: list[str]) -> str:
    return (
        f"task.class_weights has {len(weights)} numbers for {len(names)} labels: give one for each"
    )


def build_trainer(context: TrainContext) -> Any:
    """Transformers' Trainer with losses that are normalised over a whole step."""
    from transformers import Trainer, TrainingArguments

    task = block_of(context.spec, TextClassificationTask)
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
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the items of a step
    trainer.task = task
    trainer.label_weights = _label_weights(context, task)
    return trainer


class LabelLoop(ExactLoop):
    """Losses of labels: the mean over all samples of a step, each weighted by its class."""

    task: TextClassificationTask
    label_weights: Any

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """Summed loss of a batch over the items of the step (alone: those of the batch)."""
        labels = inputs["labels"]
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = outputs.logits.float()
        items = self.items(labels) if num_items_in_batch is None else num_items_in_batch
        loss = self.summed_loss(logits, labels) / items
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def summed_loss(self, logits: Any, labels: Any) -> Any:
        """Cross entropy, binary cross entropy (mean over labels) or squared error, summed."""
        from torch.nn import functional

        weights = None if self.label_weights is None else self.label_weights.to(logits.device)
        if self.task.problem_type == _NUMBER:
            return functional.mse_loss(logits.squeeze(-1), labels, reduction="sum")
        if self.task.problem_type == _MULTI:
            total = functional.binary_cross_entropy_with_logits(
                logits, labels, pos_weight=weights, reduction="sum"
            )
            return total / logits.shape[-1]
        return functional.cross_entropy(
            logits,
            labels,
            weights,
            reduction="sum",
            label_smoothing=self.task.label_smoothing_factor,
        )

    def items(self, labels: Any) -> Any:
        """What the losses of a batch are divided by: its samples, or the sum of their weights."""
        if self.label_weights is None or self.task.problem_type != _SINGLE:
            return len(labels)
        return self.label_weights.to(labels.device)[labels].sum()

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        return sum(self.items(batch["labels"]) for batch in batch_samples)

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Samples, or the sum of their weights."""
        return float(self.items(inputs["labels"]))

    def scores(self) -> Scores:
        """Accuracy and F1, or errors and correlation of numbers."""
        if self.task.problem_type == _NUMBER:
            return NumberScores()
        several = self.task.problem_type == _MULTI
        return LabelScores(self.task.threshold if several else None)


def _label_weights(context: TrainContext, task: TextClassificationTask) -> Any:
    import torch

    if task.class_weights == "none":
        return None
    names = context.data.report.facts["labels"]
    if isinstance(task.class_weights, list):
        if len(task.class_weights) != len(names):
            raise InvalidSpec(_misfit(task.class_weights, names), "task.class_weights")
        return torch.tensor(task.class_weights)
    labels = torch.tensor(context.data.train["labels"][:])
    if task.problem_type == _MULTI:
        have = labels.sum(dim=0)
        return (len(labels) - have) / have.clamp(min=1)
    counts = torch.bincount(labels, minlength=len(names))
    return len(labels) / (len(names) * counts.clamp(min=1).float())
