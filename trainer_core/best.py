"""The best evaluation so far: its weights are kept, and training ends when no better one comes."""

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.checkpoints import disk_errors, require_space, saved_bytes
from trainer_core.context import transformer_of
from trainer_core.errors import InvalidSpec
from trainer_core.spec import TrainSpec

FOLDER = "best"
_WEIGHTS = "weights"  # a level of its own: libraries take a checkpoint's sub-folders for adapters
_WRITING = ".best.writing"


class BestModel:
    """Follows one metric through the evaluations of a run.

    The rules are those of Transformers' EarlyStoppingCallback: any better value is the new best,
    and an evaluation counts as a gain when it is better by more than `threshold`. The weights of
    the best evaluation lie in the attempt's folder, and every checkpoint holds them too (hard
    links), so that a resumed run still has them.
    """

    def __init__(self, spec: TrainSpec, work: Path, *, keeps: bool = True) -> None:
        wish = spec.checkpoint
        self.metric = wish.metric_for_best_model or "loss"
        self.publishes = wish.load_best_model_at_end
        self.value: float | None = None
        self.step = 0
        self.measured: dict[str, Any] = {}
        self._greater = bool(wish.greater_is_better)
        self._stopping = wish.early_stopping
        self._without_gain = 0
        self._work = work
        self._keeps = keeps

    @property
    def is_exhausted(self) -> bool:
        """Whether `early_stopping.patience` evaluations in a row brought nothing."""
        return self._stopping is not None and self._without_gain >= self._stopping.patience

    def see(self, trainer: Any, step: int, measured: Mapping[str, Any]) -> None:
        """One evaluation; raises InvalidSpec where the rows do not give the metric."""
        value = measured.get(f"eval_{self.metric}")
        if value is None:
            names = ", ".join(sorted(name.removeprefix("eval_") for name in measured))
            raise InvalidSpec(
                f"checkpoint.metric_for_best_model is '{self.metric}', which these validation rows"
                f" do not give; they give {names}",
                "checkpoint.metric_for_best_model",
            )
        if self._is_better(float(value)):
            self.value, self.step, self.measured = float(value), step, dict(measured)
            if self.publishes and self._keeps:
                self._keep(trainer)

    def _is_better(self, value: float) -> bool:
        gain = math.inf
        if self.value is not None:
            gain = value - self.value if self._greater else self.value - value
        better = math.isfinite(value) and gain > 0
        threshold = self._stopping.threshold if self._stopping else 0.0
        self._without_gain = 0 if better and gain > threshold else self._without_gain + 1
        return better

    def _keep(self, trainer: Any) -> None:
        needed = saved_bytes(transformer_of(trainer.model))
        require_space(self._work, needed, "the best model's weights")
        writing = self._work / _WRITING
        shutil.rmtree(writing, ignore_errors=True)
        try:
            with disk_errors(self._work, needed):
                trainer.save_weights(writing / _WEIGHTS)
            shutil.rmtree(self._work / FOLDER, ignore_errors=True)
            writing.rename(self._work / FOLDER)
        finally:
            shutil.rmtree(writing, ignore_errors=True)

    def link_into(self, checkpoint: Path) -> None:
        """Give a checkpoint that is being written the best weights, at no cost of space."""
        source = self._work / FOLDER / _WEIGHTS
        if not source.is_dir():
            return
        for path in (path for path in source.rglob("*") if path.is_file()):
            target = checkpoint / FOLDER / _WEIGHTS / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # a file system that knows no hard links
                shutil.copyfile(path, target)

    def load(self, trainer: Any, last_step: int) -> bool:
        """Give the model the best weights; False where those of `last_step` are the best."""
        if not self.publishes or self.step in (0, last_step):
            return False
        trainer.load_weights(self._work / FOLDER / _WEIGHTS)
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint must carry."""
        return {
            "value": self.value,
            "step": self.step,
            "measured": self.measured,
            "without_gain": self._without_gain,
        }

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Go on from a checkpoint, whose best weights become this attempt's."""
        self.value, self.step = state.get("value"), int(state.get("step", 0))
        self.measured = dict(state.get("measured", {}))
        self._without_gain = int(state.get("without_gain", 0))
        if not self._keeps:
            return
        ours = self._work / FOLDER
        shutil.rmtree(ours, ignore_errors=True)
        if (checkpoint / FOLDER).is_dir():
            shutil.copytree(checkpoint / FOLDER, ours)


def best_of(spec: TrainSpec, work: Path, *, keeps: bool = True) -> BestModel | None:
    """What follows the metric of a resolved spec; None where nothing depends on it.

    `keeps`: whether this process writes the weights; of several ranks one does.
    """
    wanted = spec.checkpoint.load_best_model_at_end or spec.checkpoint.early_stopping is not None
    return BestModel(spec, work, keeps=keeps) if wanted else None
