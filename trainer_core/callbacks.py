"""The loop's hooks: when to log, evaluate, save and stop, and what is reported."""

import math
import time
from collections.abc import Sequence
from typing import Any

from trainer_core.best import BestModel
from trainer_core.checkpoints import Checkpointer, LoopState
from trainer_core.errors import Diverged
from trainer_core.evaluation.base import BaseEvaluation
from trainer_core.meter import Meter
from trainer_core.ranks import Ranks
from trainer_core.report import Reporter
from trainer_core.shortage import RandomState
from trainer_core.spec import TrainSpec
from trainer_core.stop import StopSignal
from trainer_core.watch import Watch

AUTO_SAVE_SECONDS = 300.0
_METRICS = ("loss", "learning_rate", "grad_norm", "entropy", "mean_token_accuracy")
_SAVE_SHARE = 50
"""An automatic checkpoint waits at least this many times as long as the last one took."""


class Flow:
    """Decides and reports at each step; mixed into Transformers' TrainerCallback.

    Its decisions depend on the step alone, but for `save_steps: auto`, which follows the clock:
    saving draws no random number, so it does not change what is trained.
    """

    def __init__(
        self,
        spec: TrainSpec,
        report: Reporter,
        stop: StopSignal,
        *,
        evaluates: bool,
        metrics: Sequence[str] = (),
    ) -> None:
        self.meter = Meter()
        self.ranks = Ranks()
        self.report = report
        self.stop = stop
        self.step = 0
        self.last_metrics: dict[str, Any] = {}
        self.evaluated: dict[str, Any] = {}
        self.base: dict[str, Any] = {}
        self.best: BestModel | None = None
        self.base_evaluation: BaseEvaluation | None = None
        self.ended_early = False
        self.ladder: dict[str, Any] = {}
        self.saved_step = 0
        self.where = "training"
        self.watch = Watch()
        self._gradient: float | None = None
        self._random: RandomState | None = None
        self.evaluation_due = False
        self.revision: str | None = None
        self.resolved: dict[str, Any] = {}
        self._spec = spec
        self._metrics = (*_METRICS, *metrics)
        self._evaluates = evaluates and spec.evaluation.strategy != "no"
        self._steps_per_epoch = 1
        self._saved_at = time.monotonic()
        self._before = (0.0, 0.0, 0.0)
        self._stopping = False
        self._state: Any = None
        self.checkpointer: Checkpointer | None = None

    # ---- called by the trainer's own loop ----

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """The loop starts, or goes on at `state.global_step`."""
        batches = len(kwargs["train_dataloader"])
        self._steps_per_epoch = math.ceil(batches / args.gradient_accumulation_steps)
        self.step = state.global_step
        self.report.phase("training")
        self.meter.restart()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """Before the first micro-batch of a step."""
        self.meter.begin_step()
        self._before = self.meter.totals()
        self._random = RandomState()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """Weights are about to change."""
        self.where = "optimizer"

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """Weights have changed."""
        self.where = "training"

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """After the optimizer: decide what happens before the next step."""
        self.step = state.global_step
        seconds = self.meter.end_step()
        save_is_due = self._agree(save=self._save_is_due())
        self._random = None
        self._look(seconds)
        last = self.step >= state.max_steps
        stopping = self.stopping
        due = self._evaluation_is_due(last=last)
        control.should_log = last or self.step % self._spec.training.logging_steps == 0
        control.should_evaluate = due and not stopping
        self.evaluation_due = due and stopping
        control.should_save = last or stopping or save_is_due
        control.should_training_stop = control.should_training_stop or stopping
        if last or self.report.progress_is_due():
            self._progress(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """Report metrics; the loss is our own exact mean over the steps since the last report."""
        del state.log_history[:-1]
        values = {k: v for k, v in (logs or {}).items() if self._is_metric(k, v)}
        if "loss" in values:
            self._gradient = values.get("grad_norm")
            values["loss"] = self.meter.take_loss()
            values |= self.meter.rates()
            self.meter.restart()
        elif "eval_loss" not in values:
            return
        if "eval_loss" in values:
            self.evaluated = {k: v for k, v in values.items() if k.startswith("eval_")}
        self.last_metrics |= values
        self.report.emit("metrics", **{**values, "step": self.step, "epoch": state.epoch})

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """After an evaluation, which a signal may have cut short, or which was one too many."""
        if self.best is not None and self.best.is_exhausted and self.step < state.max_steps:
            self.ended_early = True
            self.report.log(
                f"training ends early: the best {self.best.metric} is still that of step"
                f" {self.best.step} ({self.best.value:.6g})"
                if self.best.value is not None
                else "training ends early: no evaluation gave a number"
            )
        if self.stopping or self.ended_early:
            control.should_save = True
            control.should_training_stop = True
        self.meter.restart()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the protocol's
        """After a checkpoint."""
        self._saved_at = time.monotonic()
        self.saved_step = self.step
        self.meter.restart()

    # ---- the same on every rank ----

    @property
    def stopping(self) -> bool:
        """Whether a signal asks to stop; of several ranks, whether all know of it."""
        return self.stop.requested if self.ranks.count == 1 else self._stopping

    def stop_if_any(self, *, stop: bool, values: Sequence[float] = ()) -> list[float]:
        """Have all ranks stop where one wants to; returns the sums of `values` over them."""
        told, *sums = self.ranks.sums([float(stop), *values])
        self._stopping = self._stopping or told > 0
        return sums

    def _agree(self, *, save: bool) -> bool:
        """After a step: count what all ranks did in it, and save where rank 0 wants to."""
        if self.ranks.count == 1:
            return save
        done = zip(self.meter.totals(), self._before, strict=True)
        own = [now - before for now, before in done]
        wish = float(save and self.ranks.leads)
        loss, samples, tokens, saves = self.stop_if_any(
            stop=self.stop.requested, values=[*own, wish]
        )
        self.meter.add(self._before, (loss / self.ranks.count, samples, tokens))
        return saves > 0

    # ---- called by our trainer ----

    def add_loss(self, loss: float) -> None:
        """Count the loss of one micro-batch; raises Diverged where it is not finite."""
        if not math.isfinite(loss):
            raise _not_finite(loss, self.step + 1)
        self.meter.loss_sum += loss
        self.meter.trained()

    def loop_state(self) -> LoopState:
        """What a checkpoint must carry for an exact continuation."""
        return LoopState(
            self.meter.loss_sum,
            self.meter.loss_steps,
            self.evaluation_due,
            self.last_metrics,
            self.revision,
            self.base,
            {} if self.best is None else self.best.state(),
            self.ended_early,
            self.ladder,
            self.watch.state(),
            self.resolved,
        )

    def last(self) -> dict[str, Any]:
        """The newest measures of the validation rows."""
        return {n: value for n, value in self.last_metrics.items() if n.startswith("eval_")}

    def restore(self, step: int, state: LoopState) -> None:
        """Go on from a checkpoint."""
        self.step = self.saved_step = step
        self.meter.loss_sum, self.meter.loss_steps = state.loss_sum, state.loss_steps
        self.evaluation_due = state.evaluation_due
        self.last_metrics = dict(state.metrics)
        self.base = dict(state.base)
        self.ended_early = state.ended_early
        self.watch.restore(state.watch)

    def back_to_step_begin(self) -> None:
        """Forget a step that failed in the middle, or an evaluation, which is due again."""
        if self._random is not None:
            self._random.restore()
            self.meter.add(self._before, (0.0, 0.0, 0.0))
        self.evaluation_due = self.evaluation_due or self.where == "evaluating"

    def _look(self, seconds: float | None) -> None:
        """Have the watch see the step that has just ended."""
        self.watch.loss(self.step, self.meter.loss_sum - self._before[0], self._gradient)
        if seconds is not None:
            self.watch.time(self.step, seconds)

    def say_it_lives(self, state: Any = None) -> None:
        """Report where the run stands, about once a second: an evaluation may take hours.

        Without `state`, a Trainer's, as it stood when one was given.
        """
        self._state = state = self._state if state is None else state
        if state is not None and self.report.progress_is_due():
            self.report.emit(
                "progress", step=self.step, total_steps=state.max_steps, epoch=state.epoch
            )

    # ---- decisions ----

    def _is_metric(self, name: str, value: Any) -> bool:
        return isinstance(value, (int, float)) and name.removeprefix("eval_") in self._metrics

    def _evaluation_is_due(self, *, last: bool) -> bool:
        if not self._evaluates:
            return False
        evaluation = self._spec.evaluation
        every = evaluation.steps if evaluation.steps is not None else self._steps_per_epoch
        return last or self.step % every == 0

    def _save_is_due(self) -> bool:
        checkpoint = self._spec.checkpoint
        if checkpoint.save_strategy == "no":
            return False
        if checkpoint.save_strategy == "epoch":
            return self.step % self._steps_per_epoch == 0
        if checkpoint.save_steps == "auto":
            took = self.checkpointer.seconds if self.checkpointer else 0.0
            wait = max(AUTO_SAVE_SECONDS, _SAVE_SHARE * took)
            return time.monotonic() - self._saved_at >= wait
        return self.step % checkpoint.save_steps == 0

    def _progress(self, state: Any) -> None:
        self.report.emit(
            "progress",
            step=self.step,
            total_steps=state.max_steps,
            epoch=state.epoch,
            eta_seconds=self.meter.eta_seconds(state.max_steps - self.step),
            **(self.meter.rates() if self.meter.loss_steps else _rates(self.last_metrics)),
            **_device_memory(),
        )


def _rates(metrics: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if k.endswith("_per_second")}


def _device_memory() -> dict[str, int]:
    import torch

    if not torch.cuda.is_initialized():
        return {}
    return {"device_memory_mb": torch.cuda.max_memory_allocated() // 2**20}


def as_callback(flow: Flow) -> Any:
    """`flow` as a TrainerCallback that shares its state."""
    from transformers import TrainerCallback

    hooks = {name: getattr(flow, name) for name in dir(Flow) if name.startswith("on_")}
    # Bound methods as class attributes are called without a second `self`.
    return type("FlowCallback", (TrainerCallback,), hooks)()


def _not_finite(loss: float, step: int) -> Diverged:
    """Before the first step is made no setting of the training can be the cause."""
    if step == 1:
        return Diverged(
            f"the loss is {loss} at step 1, before anything was learned: the model's weights"
            " (model.name_or_path) or numbers of the rows (data.train) are not finite or too large,"
            " or too large for fp16: use precision bf16 or fp32"
        )
    return Diverged(
        f"the loss is {loss} at step {step}: lower training.learning_rate, or"
        " raise training.warmup_steps, or choose precision bf16 or fp32",
        "training.learning_rate",
    )
