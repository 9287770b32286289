"""Our part of the trainer: exact losses, token-weighted evaluation, whole checkpoints."""

from typing import Any

from trainer_core.callbacks import Flow
from trainer_core.checkpoints import Checkpointer

IGNORED = -100


class ExactLoop:
    """Mixed in before a library's Trainer class; needs `flow` and `checkpointer` to be set."""

    flow: Flow
    checkpointer: Checkpointer

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
        """Mean loss over all tokens of the validation rows, whatever the batches are.

        Draws from no random generator of the training. Returns {} when a signal cut it short.
        """
        trainer: Any = self
        self.flow.report.phase_unless_stopped("evaluating")
        with _own_random_state(), self.flow.meter.paused():
            loss = self._token_loss(trainer.get_eval_dataloader(eval_dataset))
        metrics = {} if loss is None else {f"{metric_key_prefix}_loss": loss}
        self.flow.evaluation_due = loss is None
        if metrics:
            trainer.log(metrics)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
        if self.flow.step < trainer.state.max_steps:
            self.flow.report.phase_unless_stopped("training")
        return metrics

    def restore_finished(self, checkpoint: str) -> None:
        """Load a checkpoint of the last step: its weights, and where the run stood."""
        from transformers import TrainerState

        trainer: Any = self
        trainer._load_from_checkpoint(checkpoint)
        trainer.state = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json")

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: checkpoints are not published, and the model gets a card of ours."""

    def _token_loss(self, batches: Any) -> float | None:
        trainer: Any = self
        trainer.model.eval()
        total, tokens = 0.0, 0
        for inputs in batches:
            if self.flow.stop.requested:
                return None
            count = int((inputs["labels"][..., 1:] != IGNORED).sum())
            loss, _, _ = trainer.prediction_step(trainer.model, inputs, prediction_loss_only=True)
            total += loss.item() * count
            tokens += count
            self.flow.say_it_lives(trainer.state)
        return total / max(tokens, 1)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.flow.step
        write = super()._save_checkpoint  # type: ignore[misc]
        self.checkpointer.save(step, lambda: write(model, trial), self.flow.loop_state())


def _own_random_state() -> Any:
    import torch

    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    return torch.random.fork_rng(devices=cuda)


def trainer_class(base: type) -> type:
    """`base` (a library's Trainer class) with our loop mixed in."""
    return type(f"Exact{base.__name__}", (ExactLoop, base), {})
