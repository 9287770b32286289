"""Direct preference optimization, on TRL's DPOTrainer."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.chosen_tokens import ChosenTokens
from trainer_core.context import TrainContext
from trainer_core.dropout import switch_off_dropout
from trainer_core.hardware import Hardware
from trainer_core.loop import Scores, attach, trainer_class
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.measures import BatchMeans
from trainer_core.pairs import PairCollator, preference_problems
from trainer_core.problems import Problem
from trainer_core.references import (
    COMPARED_ADAPTERS,
    FollowingReference,
    reference_model,
    settle_reference,
    usual_reference,
)
from trainer_core.spec import DpoTask, TrainSpec
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import lasting_base_problems, template_problem


def _frozen_copies(spec: TrainSpec) -> int:
    return int(block_of(spec, DpoTask).reference == "model")


FACTS = TaskFacts(
    formats=("preference", "openai_preference"),
    rows="preferences",
    model=ModelKind("AutoModelForCausalLM", "a causal language model", "CAUSAL_LM"),
    defaults=Defaults(
        learning_rate=1e-6,
        adapter_learning_rate=5e-6,
        max_length=1024,
        num_train_epochs=1.0,
        sequences=2,
    ),
    card=CardText(
        pipeline_tag="text-generation",
        made_by="direct preference optimization",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_rewards/accuracies": "validation pairs that are ranked rightly",
            "eval_rewards/margins": "validation reward margin",
        },
    ),
    metrics=(
        "rewards/chosen",
        "rewards/rejected",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
    ),
    over_length=("error", "truncate_right", "drop"),
    adapters=COMPARED_ADAPTERS,
    frozen_copies=_frozen_copies,
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:
    """The length of a row, and what answers are compared with."""
    task = block_of(spec, DpoTask)
    return {
        "max_length": FACTS.defaults.max_length,
        "reference": usual_reference(spec, task.ref_model),
    }


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Losses and references that do not go together, and a template that is none."""
    task = block_of(spec, DpoTask)
    reference = task.reference or open_fields(spec)["reference"]
    yield from preference_problems(task, reference, adapted=spec.adapts)
    if reference != "model":
        yield from lasting_base_problems(spec)
    yield from template_problem(task.chat_template)


def build_trainer(context: TrainContext) -> Any:
    """TRL's DPOTrainer on prepared pairs, with the reference that the spec asks for."""
    from trl import DPOConfig, DPOTrainer

    ensure_loss_kernel()
    task = block_of(context.spec, DpoTask)
    reference = reference_model(context, task)
    config = DPOConfig(
        **loop_arguments(context),
        **{name: getattr(task, name) for name in _PASSED_ON},
        max_length=None,  # rows are cut when they are prepared
        precompute_ref_log_probs=task.reference == "precomputed",
    )
    if task.disable_dropout:
        switch_off_dropout(context.loaded.model)
    tokenizer = context.loaded.tokenizer
    trainer = trainer_class(DPOTrainer, PairLoop)(
        model=context.loaded.model,
        ref_model=reference,
        args=config,
        data_collator=PairCollator(tokenizer.pad_token_id, context.flow.meter),
        train_dataset=context.data.train,
        eval_dataset=context.data.validation,
        processing_class=tokenizer,
    )
    attach(trainer, context)
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the pairs of a step
    trainer.take_over()
    settle_reference(trainer, task)
    return trainer


_PASSED_ON = (
    "beta",
    "loss_type",
    "loss_weights",
    "label_smoothing",
    "ld_alpha",
    "f_divergence_type",
    "f_alpha_divergence_coef",
    "use_weighting",
    "discopop_tau",
    "precompute_ref_batch_size",
    "sync_ref_model",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "disable_dropout",
)


class PairLoop(FollowingReference, ChosenTokens):
    """Losses of pairs: the mean over all pairs of a step; a reference that follows is saved."""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The library's mean over a batch, as its share of the step's mean."""
        loss = super().compute_loss(model, inputs, return_outputs)
        if num_items_in_batch is None:
            return loss
        return loss * (self.batch_weight(inputs) / num_items_in_batch)

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Pairs."""
        return float(len(inputs["input_ids"]) // 2)

    def scores(self) -> Scores:
        """Rewards and likelihoods, as the library measures them for each batch."""
        trainer: Any = self
        return BatchMeans(trainer._metrics["eval"])

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        self.see_chosen(batch_samples)
        return sum(self.batch_weight(batch) for batch in batch_samples)

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        """Rows are prepared already."""
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """The reference's likelihoods as two columns; nothing is cached between runs."""
        trainer: Any = self
        collate = PairCollator(trainer.data_collator.pad_token_id)
        model = trainer.ref_model or trainer.model
        model.eval()
        found: tuple[list[float], list[float]] = ([], [])
        for start in range(0, len(dataset), batch_size):
            rows = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
            batch = trainer._prepare_inputs(collate(rows))
            for column, values in zip(
                found, trainer.compute_ref_log_probs(model, batch), strict=True
            ):
                column += values.float().tolist()
        for side, values in zip(("chosen", "rejected"), found, strict=True):
            fingerprint = f"{dataset._fingerprint}-{name}-{side}"
            dataset = dataset.add_column(f"ref_{side}_logps", values, new_fingerprint=fingerprint)
        return dataset
