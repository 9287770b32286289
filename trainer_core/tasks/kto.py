"""Kahneman-Tversky optimization, on TRL's KTOTrainer."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.dropout import switch_off_dropout
from trainer_core.errors import InvalidData
from trainer_core.hardware import Hardware
from trainer_core.judged import PARTNER, JudgedCollator, JudgedMeans, partners
from trainer_core.loop import ExactLoop, Scores, attach, trainer_class
from trainer_core.loss_kernel import ensure_loss_kernel
from trainer_core.problems import Problem
from trainer_core.references import (
    COMPARED_ADAPTERS,
    FollowingReference,
    reference_model,
    reference_problems,
    settle_reference,
    usual_reference,
)
from trainer_core.spec import KtoTask, TrainSpec
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import dotted, lasting_base_problems, template_problem


def _frozen_copies(spec: TrainSpec) -> int:
    return int(block_of(spec, KtoTask).reference == "model")


FACTS = TaskFacts(
    formats=("unpaired_preference", "judged_messages", "preference", "openai_preference"),
    rows="judged_answers",
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
        made_by="Kahneman-Tversky optimization",
        results={
            "loss": "training loss (last)",
            "eval_loss": "validation loss",
            "eval_rewards/chosen": "validation reward of desirable answers",
            "eval_rewards/rejected": "validation reward of undesirable answers",
            "eval_rewards/margins": "validation reward margin",
        },
    ),
    metrics=(
        "rewards/chosen",
        "rewards/rejected",
        "rewards/margins",
        "logps/chosen",
        "logps/rejected",
        "kl",
    ),
    over_length=("error", "truncate_right", "drop"),
    adapters=COMPARED_ADAPTERS,
    frozen_copies=_frozen_copies,
)


def open_fields(spec: TrainSpec) -> dict[str, Any]:
    """The length of a row, and what answers are compared with."""
    task = block_of(spec, KtoTask)
    return {
        "max_length": FACTS.defaults.max_length,
        "reference": usual_reference(spec, task.ref_model),
    }


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """References that cannot be made, and a template that is none."""
    task = block_of(spec, KtoTask)
    reference = task.reference or open_fields(spec)["reference"]
    for field, message in reference_problems(task, reference, adapted=spec.adapts):
        yield Problem(pointer=f"/task/{field}", message=f"task.{dotted(field)} {message}")
    if reference != "model":
        yield from lasting_base_problems(spec)
    yield from template_problem(task.chat_template)


_PASSED_ON = (
    "beta",
    "loss_type",
    "desirable_weight",
    "undesirable_weight",
    "precompute_ref_batch_size",
    "sync_ref_model",
    "ref_model_mixup_alpha",
    "ref_model_sync_steps",
    "disable_dropout",
)


def build_trainer(context: TrainContext) -> Any:
    """TRL's KTOTrainer on prepared answers, each beside the answer of another row."""
    from trl import KTOConfig, KTOTrainer

    ensure_loss_kernel()
    task = block_of(context.spec, KtoTask)
    settings = loop_arguments(context)
    batch = settings["per_device_train_batch_size"]
    # The library takes answers of other rows from the batch; ours come from all rows.
    settings["per_device_train_batch_size"] = max(batch, 2)
    config = KTOConfig(
        **settings,
        **{name: getattr(task, name) for name in _PASSED_ON},
        max_length=None,  # rows are cut when they are prepared
        precompute_ref_log_probs=task.reference == "precomputed",
    )
    if task.disable_dropout:
        switch_off_dropout(context.loaded.model)
    train = _Part(context, context.data.train, "train")
    validation = _Part(context, context.data.validation, "validation")
    kind: Any = trainer_class(KTOTrainer, JudgedLoop)
    kind.collate_validation = validation.collator
    trainer = kind(
        model=context.loaded.model,
        ref_model=reference_model(context, task),
        args=config,
        data_collator=train.collator,
        train_dataset=train.rows,
        eval_dataset=validation.rows,
        processing_class=context.loaded.tokenizer,
    )
    attach(trainer, context)
    trainer.model_accepts_loss_kwargs = True  # `compute_loss` divides by the rows of a step
    trainer.args.per_device_train_batch_size = trainer._train_batch_size = batch
    trainer.args.train_sampling_strategy = "random"  # partners do not depend on the order
    settle_reference(trainer, task)
    return trainer


class _Part:
    """Rows for training or validation with their partners, and how they become batches."""

    def __init__(self, context: TrainContext, rows: Any, name: str) -> None:
        self.rows = rows
        compares = block_of(context.spec, KtoTask).loss_type == "kto"
        if rows is not None and compares:
            self.rows = _with_partners(context, rows, name)
        meter = context.flow.meter if name == "train" else None
        pad = context.loaded.tokenizer.pad_token_id
        self.collator = JudgedCollator(pad, self.rows if compares else None, meter)


def _with_partners(context: TrainContext, rows: Any, name: str) -> Any:
    if len(rows) < 2:
        raise InvalidData(
            f"data.{name} has one row, but loss_type 'kto' compares answers with those of other"
            " rows: add rows, or use loss_type 'apo_zero_unpaired'",
            f"data.{name}",
        )
    training = context.spec.training
    seed = training.seed if training.data_seed is None else training.data_seed
    fingerprint = f"{rows._fingerprint}-p{seed}"  # 64 characters are the most
    return rows.add_column(PARTNER, partners(len(rows), seed), new_fingerprint=fingerprint)


class JudgedLoop(FollowingReference, ExactLoop):
    """Losses of single answers: the mean over all rows of a step.

    What rewards are compared with, the divergence on answers that do not belong to their prompts,
    is estimated once for all rows of a step (of an evaluation), whatever its batches are.
    """

    rows_stand_alone = False
    collate_validation: Any = None
    divergence: float | None = None
    _step: list[Any] | None = None
    _told: list[Any]

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The library's mean over a batch, as its share of the step's mean."""
        if self._step is not None:
            self.divergence, self._step = self._divergence_of(self._step), None
        self._told = [] if self.divergence is None else [self.divergence, 0.0]
        loss = super().compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        if num_items_in_batch is None or return_outputs:
            return loss
        return loss * (self.batch_weight(inputs) / num_items_in_batch)

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Answers."""
        return float(len(inputs["label"]))

    def scores(self) -> Scores:
        """Rewards and likelihoods, as the library measures them for each batch."""
        trainer: Any = self
        return JudgedMeans(trainer._metrics["eval"])

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Validation rows have partners of their own."""
        trainer: Any = self
        own, trainer.data_collator = trainer.data_collator, self.collate_validation
        try:
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        finally:
            trainer.data_collator = own

    @contextmanager
    def measuring(self, batches: Iterable[Any]) -> Iterator[None]:
        """Rewards are compared with the divergence over all of these batches."""
        with super().measuring(batches):
            self.divergence = self._divergence_of(batches)
            yield

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        # The divergence waits for the first loss: a resumed run has its random state only then.
        self._step = batch_samples
        return sum(self.batch_weight(batch) for batch in batch_samples)

    def _divergence_of(self, batches: Any) -> float | None:
        """Mean log-ratio of mismatched answers over all rows; None for a loss without it."""
        import torch

        trainer: Any = self
        if not trainer.calculate_KL:
            return None
        total = rows = 0.0
        for inputs in batches:
            if self.flow.stop.requested and not trainer.model.training:
                break
            batch = trainer._prepare_inputs(inputs)
            with torch.no_grad(), trainer.compute_loss_context_manager():
                ratio = self._mismatched(trainer.model, batch) - self._by_reference(batch)
            total += ratio.sum().item()
            rows += len(ratio)
            self.flow.say_it_lives(trainer.state)
        total, rows = self.flow.ranks.sums([total, rows])
        return total / max(rows, 1.0)

    def _by_reference(self, batch: Mapping[str, Any]) -> Any:
        trainer: Any = self
        if trainer.precompute_ref_logps:
            return batch["ref_KL_logps"]
        if trainer.ref_model is not None:
            return self._mismatched(trainer.ref_model, batch)
        with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
            return self._mismatched(trainer.model, batch)

    def _mismatched(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return super()._compute_kl_logps(model, batch)  # type: ignore[misc]

    def _compute_kl_logps(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """What the library asks for: first the model's, then the reference's; their mean difference
        is the divergence that is known already."""
        import torch

        trainer: Any = self
        if not trainer.calculate_KL or not self._told:
            return super()._compute_kl_logps(model, batch)  # type: ignore[misc]
        value = torch.full((len(batch["label"]),), self._told.pop(0), device=trainer.args.device)
        return value + batch["ref_KL_logps"] if trainer.precompute_ref_logps else value

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        """Rows are prepared already."""
        return dataset

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """The reference's likelihoods as columns; nothing is cached between runs."""
        trainer: Any = self
        own = trainer.data_collator if name == "train" else self.collate_validation
        collate = JudgedCollator(own.pad_token_id, dataset if trainer.calculate_KL else None)
        model = trainer.ref_model or trainer.model
        model.eval()
        found: dict[str, list[float]] = {"ref_logps": [], "ref_KL_logps": []}
        for start in range(0, len(dataset), batch_size):
            rows = [dataset[i] for i in range(start, min(start + batch_size, len(dataset)))]
            batch = trainer._prepare_inputs(collate(rows))
            values = trainer.compute_ref_log_probs(model, batch)
            for column, likelihoods in zip(found.values(), values, strict=True):
                column += [] if likelihoods is None else likelihoods.float().tolist()
        for column_name, likelihoods in found.items():
            if likelihoods:
                fingerprint = f"{dataset._fingerprint}-{column_name}"
                dataset = dataset.add_column(column_name, likelihoods, new_fingerprint=fingerprint)
        return dataset
