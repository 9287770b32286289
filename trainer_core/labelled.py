"""What classifying tasks share: the label map, problems of labels, and losses weighted by class."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.loop import ExactLoop, Scores
from trainer_core.measures import LabelScores, NumberScores
from trainer_core.problems import Problem
from trainer_core.spec import LabelledTask, TrainSpec
from trainer_core.task_facts import block_of

SINGLE, MULTI, NUMBER = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)


def problem_type(task: LabelledTask) -> str:
    """One label, several or a number; tasks that leave no choice have one label."""
    return str(getattr(task, "problem_type", SINGLE))


def label_options(spec: TrainSpec, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The label map, which the model's configuration keeps."""
    task = block_of(spec, LabelledTask)
    kind = problem_type(task)
    if kind == NUMBER:
        return {"num_labels": 1, "problem_type": NUMBER}
    names = facts.get("labels") or task.label_names or []
    return {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
        "problem_type": kind,
    }


def replaces_head(spec: TrainSpec) -> bool:
    """Whether a head for another number of labels is given up."""
    return block_of(spec, LabelledTask).ignore_mismatched_sizes


def label_problems(task: LabelledTask) -> Iterator[Problem]:
    """Lists of names and weights that do not fit each other."""
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


def learn_labels(trainer: Any, context: TrainContext, task: LabelledTask) -> None:
    """Give a trainer whose loop is a `LabelLoop` the task and its weights.

    Raises InvalidSpec for weights that do not fit, and InvalidData for rows of one label alone.
    """
    if problem_type(task) != NUMBER:
        _require_choice(context.data.report.facts["labels"], problem_type(task))
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the items of a step
    trainer.task = task
    trainer.label_weights = _label_weights(context, task)


def _require_choice(names: list[str], kind: str) -> None:
    """The loss of a choice of one is always zero: a run would end well and have learned nothing."""
    if not names:
        text = "data.train has no label in any row: add rows with labels, or task.label_names"
        raise InvalidData(text, "data.train")
    if kind == SINGLE and len(names) < 2:
        raise InvalidData(
            f"data.train has the label '{names[0]}' alone, so that there is nothing to learn: add"
            " rows with another one, or declare all labels in task.label_names",
            "data.train",
        )


class LabelLoop(ExactLoop):
    """Losses of labels: the mean over all samples of a step, each weighted by its class."""

    task: LabelledTask
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
        kind = problem_type(self.task)
        if kind == NUMBER:
            return functional.mse_loss(logits.squeeze(-1), labels, reduction="sum")
        if kind == MULTI:
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
        if self.label_weights is None or problem_type(self.task) != SINGLE:
            return len(labels)
        return self.label_weights.to(labels.device)[labels].sum()

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        return sum(self.items(batch["labels"]) for batch in batch_samples)

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Samples, or the sum of their weights."""
        return float(self.items(inputs["labels"]))

    def scores(self) -> Scores:
        """Accuracy and F1, or errors and correlation of numbers."""
        kind = problem_type(self.task)
        if kind == NUMBER:
            return NumberScores()
        return LabelScores(getattr(self.task, "threshold", None) if kind == MULTI else None)


def _label_weights(context: TrainContext, task: LabelledTask) -> Any:
    import torch

    if task.class_weights == "none":
        return None
    names = context.data.report.facts["labels"]
    if isinstance(task.class_weights, list):
        if len(task.class_weights) != len(names):
            raise InvalidSpec(_misfit(task.class_weights, names), "task.class_weights")
        return torch.tensor(task.class_weights)
    labels = torch.tensor(context.data.train["labels"][:])
    if problem_type(task) == MULTI:
        return _rarity(labels)
    counts = torch.bincount(labels, minlength=len(names))
    return len(labels) / (len(names) * counts.clamp(min=1).float())


def _rarity(labels: Any) -> Any:
    """Rows without a label per row with it; raises InvalidData where all rows have the same."""
    have = labels.sum(dim=0)
    if bool(((have == 0) | (have == len(labels))).all()):
        raise InvalidData(
            "every row of data.train has the same labels, so that none is rare and there is nothing"
            " to tell apart: add rows with others, or set task.class_weights to none",
            "data.train",
        )
    return (len(labels) - have).clamp(min=1) / have.clamp(min=1)
