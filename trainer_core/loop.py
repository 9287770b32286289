"""Our part of the trainer: exact losses, token-weighted evaluation, whole checkpoints."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from trainer_core.adapter_init import InitialWeights
from trainer_core.adapter_switch import switch_quickly
from trainer_core.callbacks import Flow, as_callback
from trainer_core.checkpoints import Checkpointer
from trainer_core.context import TrainContext, transformer_of
from trainer_core.own_names import own_names, require_known
from trainer_core.rank_budget import RankBudget
from trainer_core.rank_budget import as_callback as budget_callback
from trainer_core.rank_loop import RankPart, connect
from trainer_core.ranks import Ranks
from trainer_core.spec import AdaLoraAdapter

IGNORED = -100


class Scores(Protocol):
    """Measures of an evaluation, gathered batch by batch in bounded memory."""

    needs_logits: bool
    summed: tuple[str, ...]
    """Attributes that add up: numbers, lists, tensors, None, or mappings of such."""

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:
        """One batch; `logits` is None unless they are needed."""

    def results(self, loss: float) -> dict[str, float]:
        """The measures over all batches, whose mean loss is `loss`."""


def join(scores: Scores, ranks: Ranks) -> None:
    """Have the scores of one rank's batches hold those of all ranks."""
    if ranks.count > 1:
        told = ranks.collect({name: getattr(scores, name) for name in scores.summed})
        for name in scores.summed:
            setattr(scores, name, reduce(_added, (each[name] for each in told)))


def _added(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict):
        return {n: _added(left.get(n), right.get(n)) for n in {**left, **right}}
    if isinstance(left, tuple):
        return tuple(_added(a, b) for a, b in zip(left, right, strict=True))
    return left + right


class ExactLoop:
    """Mixed in before a library's Trainer class; needs `flow` and `checkpointer` to be set."""

    flow: Flow
    checkpointer: Checkpointer
    rows_stand_alone = True
    """Whether a validation row's loss is the same in any batch."""
    initial: InitialWeights | None = None
    budget: RankBudget | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One micro-batch; raises Diverged before the optimizer sees a broken gradient."""
        loss = super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        self.flow.add_loss(loss.item())
        return loss

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,  # noqa: ARG002 - the signature of Trainer.evaluate
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Mean loss over all tokens (or samples) of the validation rows, whatever the batches are.

        Draws from no random generator of the training. Returns {} when a signal cut it short.
        """
        trainer: Any = self
        self.flow.report.phase_unless_stopped("evaluating")
        self.flow.where = "evaluating"
        with self.apart_from_training():
            batches = trainer.get_eval_dataloader(eval_dataset)
            with self.measuring(batches):
                measured = self._measure(batches)
        self.flow.where = "training"
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self.flow.evaluation_due = not measured
        if metrics:
            trainer.log(metrics)
            if self.flow.best is not None and self.flow.step:
                self.flow.best.see(trainer, self.flow.step, self.flow.evaluated)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
        if self.flow.step < trainer.state.max_steps:
            self.flow.report.phase_unless_stopped("training")
        return metrics

    @contextmanager
    def apart_from_training(self) -> Iterator[None]:
        """What happens inside leaves the training's random state and counts as they are."""
        with _own_random_state(), self.flow.meter.paused():
            yield

    @contextmanager
    def measuring(self, batches: Iterable[Any]) -> Iterator[None]:  # noqa: ARG002 - for tasks
        """Around whatever measures these batches, apart from training. A task may set up more, and
        go through the batches for it."""
        trainer: Any = self
        trainer.model.eval()
        yield

    def restore_finished(self, checkpoint: str) -> None:
        """Load a checkpoint of the last step: its weights, and where the run stood."""
        from transformers import TrainerState

        trainer: Any = self
        trainer._load_from_checkpoint(checkpoint)
        trainer.state = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json")

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: checkpoints are not published, and the model gets a card of ours."""

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """What a batch's mean loss counts for: its tokens with loss, unless a task counts else."""
        return int((inputs["labels"][..., 1:] != IGNORED).sum())

    def scores(self) -> Scores | None:
        """What an evaluation measures beside the loss; a task may say more."""
        return None

    def _measure(self, batches: Any) -> dict[str, float]:
        """Loss and scores over all batches; {} when a signal cut it short."""
        trainer: Any = self
        scores = self.scores()
        loss_only = scores is None or not scores.needs_logits
        total = weights = 0.0
        cut_short = False
        for inputs in batches:
            if cut_short := self.flow.stop.requested:
                break
            weight = self.batch_weight(inputs)
            loss, logits, _ = trainer.prediction_step(trainer.model, inputs, loss_only)
            total += loss.item() * weight
            weights += weight
            if scores is not None:
                scores.add(inputs, logits, weight)
            self.flow.say_it_lives(trainer.state)
        total, weights, cut = self.flow.stop_if_any(
            stop=cut_short, values=[total, weights, float(cut_short)]
        )
        if cut:
            return {}
        mean = total / max(weights, 1e-9)
        if scores is None:
            return {"loss": mean}
        join(scores, self.flow.ranks)
        return {"loss": mean} | scores.results(mean)

    def save_more(self, folder: Path) -> None:
        """Write to a checkpoint what a task has beside model and optimizer."""

    def load_more(self, folder: Path) -> None:
        """Read it back."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        write_library_part = super()._save_checkpoint  # type: ignore[misc]

        def write() -> None:
            write_library_part(model, trial)
            [folder] = self.checkpointer.staging.iterdir()
            self._save_parts(folder)
            if self.flow.best is not None:
                self.flow.best.link_into(folder)
            if self.flow.base_evaluation is not None:
                self.flow.base_evaluation.link_into(folder)

        self.checkpointer.save(self.flow.step, write, self.flow.loop_state())

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        trainer: Any = self
        with own_names(trainer.model):
            super()._save(output_dir, state_dict)  # type: ignore[misc]

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        require_known(load_result.unexpected_keys)
        super()._issue_warnings_after_load(load_result)  # type: ignore[misc]

    def _save_parts(self, folder: Path) -> None:
        for part in (self.initial, self.budget):
            if part is not None:
                part.save(folder)
        self.save_more(folder)

    def save_weights(self, folder: Path) -> None:
        """What a checkpoint holds of the model alone, without optimizer and place in the data."""
        trainer: Any = self
        trainer.save_model(str(folder), _internal_call=True)
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
        self._save_parts(folder)

    def load_weights(self, folder: Path) -> None:
        """Read them back into the model."""
        trainer: Any = self
        trainer._load_from_checkpoint(str(folder))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.budget is None:  # else the library's part lacks the ranks that are masked now
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        self.load_more(Path(resume_from_checkpoint))


class AdapterPart:
    """Mixed in before all: AdaLoRA's penalty, once in each step's loss, and adapters' states."""

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """The task's loss; while training with the penalty's share of this micro-batch."""
        trainer: Any = self
        loss = super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )
        if trainer.budget is None or not trainer.model.training or return_outputs:
            return loss
        # Without a count of items the library divides by the micro-batches of a step itself.
        shares = 1 if num_items_in_batch is None else trainer.current_gradient_accumulation_steps
        return loss + trainer.budget.penalty() / shares

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        trainer: Any = self
        folder = Path(resume_from_checkpoint)
        if trainer.budget is not None:
            trainer.budget.load(folder)
        if trainer.initial is not None:
            trainer.initial.restore(folder, transformer_of(trainer.model))


def _own_random_state() -> Any:
    import torch

    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    return torch.random.fork_rng(devices=cuda)


def trainer_class(base: type, loop: type = ExactLoop) -> type:
    """`base` (a library's Trainer class) with our loop, or a task's kind of it, mixed in."""
    return type(f"Exact{base.__name__}", (AdapterPart, RankPart, loop, base), {})


def attach(trainer: Any, context: TrainContext) -> None:
    """Give a trainer made by `trainer_class` the run's hooks."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(as_callback(context.flow))
    trainer.flow = context.flow
    trainer.checkpointer = context.checkpointer
    if context.flow.ranks.count > 1:
        connect(trainer, context.flow.ranks)
    trainer.initial = context.loaded.initial
    if hasattr(transformer_of(trainer.model), "disable_adapter"):
        switch_quickly(transformer_of(trainer.model))
    if isinstance(context.spec.adapter, AdaLoraAdapter):
        trainer.budget = RankBudget(transformer_of(trainer.model), context.spec.adapter)
        trainer.add_callback(budget_callback(trainer.budget))
