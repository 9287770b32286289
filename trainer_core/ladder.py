"""The way down when memory runs out: every rung needs less of it, and none changes a step's rows.

    micro-batch / p, accumulation · p      until rows are trained one by one
    activation checkpointing               activations are computed again in the backward pass
    token loss in smaller pieces           where the loss is computed piece by piece here

What was stepped down to travels with the checkpoints, so that whoever resumes begins there.
"""

from typing import Any

from trainer_core.loss_kernel import SMALL_PIECE
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_PIECES = ("tokens", "documents")
_KEY = "loss_tokens_at_once"


class Ladder:
    """Where a run stands on the way down; `state` holds what differs from the spec."""

    def __init__(self, spec: TrainSpec, state: dict[str, Any] | None = None) -> None:
        self._spec = spec
        self.state: dict[str, Any] = dict(state or {})

    @property
    def spec(self) -> TrainSpec:
        """The spec with every rung that was taken."""
        fields = {name: value for name, value in self.state.items() if name != _KEY}
        training = self._spec.training.model_copy(update=fields)
        return self._spec.model_copy(update={"training": training})

    @property
    def tokens_at_once(self) -> int | None:
        """How many tokens' logits are held at once; None where the vocabulary decides."""
        tokens: int | None = self.state.get(_KEY)
        return tokens

    def lower_evaluation(self) -> str | None:
        """Halve the batches of evaluations; says so, or returns None where they have one row."""
        batch = self.spec.training.per_device_eval_batch_size or 1
        if batch == 1:
            return None
        self.state["per_device_eval_batch_size"] = batch // 2
        return f"evaluations take batches of {batch // 2} instead of {batch}"

    def lower(self, *, pieces: bool) -> str | None:
        """Take the next rung and say which; None at the bottom.

        `pieces` says whether the token loss of this run is computed piece by piece.
        """
        training = self.spec.training
        batch = training.per_device_train_batch_size or 1
        if batch > 1 and self._splits():
            return self._split(batch, training.gradient_accumulation_steps or 1)
        if not training.gradient_checkpointing:
            self.state["gradient_checkpointing"] = True
            return "activations are no longer kept, but computed again (gradient_checkpointing)"
        if pieces and task_of(self._spec).FACTS.rows in _PIECES and _KEY not in self.state:
            self.state[_KEY] = SMALL_PIECE
            return f"the loss is computed for {SMALL_PIECE} tokens at a time"
        return None

    def _splits(self) -> bool:
        """Whether several small batches are the same as a large one, and any split is a legal one.

        Groups of answers stay whole, and losses that compare the rows of a batch need all of them.
        """
        facts = task_of(self._spec).FACTS
        return facts.defaults.accumulates and facts.step_multiple(self._spec) == 1

    def _split(self, batch: int, accumulation: int) -> str:
        parts = next(p for p in range(2, batch + 1) if batch % p == 0)
        self.state["per_device_train_batch_size"] = batch // parts
        self.state["gradient_accumulation_steps"] = accumulation * parts
        return (
            f"micro-batches have {batch // parts} instead of {batch} rows, and"
            f" {accumulation * parts} instead of {accumulation} make a step, which still has"
            f" {batch * accumulation} rows"
        )
