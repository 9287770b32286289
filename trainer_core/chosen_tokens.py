"""The `sft` part of a preference loss: the mean over all chosen tokens of a step.

The library takes it over the tokens of one batch, so that a step would depend on how its rows are
cut into batches, and pairs of short answers weigh more.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainer_core.loop import ExactLoop

_NAME = "sft"


class ChosenTokens(ExactLoop):
    """Mixed in before TRL's DPOTrainer: its losses of pairs, and this part beside them.

    A batch's part is weight · (−log-likelihood of its chosen tokens) / (pairs · `tokens_per_pair`),
    where the last is the mean over all rows of the step (or of the evaluation). The mean over pairs
    that is taken of it afterwards is so the mean over tokens.
    """

    chosen_weight = 0.0
    tokens_per_pair = 1.0

    def take_over(self) -> None:
        """Have the library leave the part to us."""
        trainer: Any = self
        parts = list(zip(trainer.loss_types, trainer.loss_weights, strict=True))
        self.chosen_weight = sum(weight for name, weight in parts if name == _NAME)
        kept = [(name, weight) for name, weight in parts if name != _NAME]
        trainer.loss_types = [name for name, _ in kept]
        trainer.loss_weights = [weight for _, weight in kept]

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,  # noqa: ARG002 - Trainer's signature
    ) -> Any:
        """The mean over the pairs of a batch, both parts together."""
        if not self.chosen_weight:
            return super().compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        heard = _Heard(model)
        found = super().compute_loss(heard, inputs, return_outputs)  # type: ignore[misc]
        part = self._part(heard.first, inputs)
        return (found[0] + part, found[1]) if return_outputs else found + part

    @contextmanager
    def measuring(self, batches: Iterable[Any]) -> Iterator[None]:
        """The mean is over all chosen tokens of these batches."""
        with super().measuring(batches):
            self.see_chosen(batches)
            yield

    def see_chosen(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Count what is normalised over together, on all ranks."""
        if not self.chosen_weight:
            return
        tokens = pairs = 0.0
        for inputs in batches:
            count = len(inputs["input_ids"]) // 2
            tokens += float(inputs["completion_mask"][:count, 1:].sum())
            pairs += count
        tokens, pairs = self.flow.ranks.sums([tokens, pairs])
        self.tokens_per_pair = max(tokens, 1.0) / max(pairs, 1.0)

    def _part(self, outputs: Any, inputs: Mapping[str, Any]) -> Any:
        pairs = len(inputs["input_ids"]) // 2
        width = inputs["completion_mask"].shape[1] - 1
        likelihood = outputs.log_probs[:pairs, -width:].sum()  # 0 where a token carries no loss
        return -self.chosen_weight * likelihood / (pairs * self.tokens_per_pair)


class _Heard:
    """A model, and what it said first: the library keeps that to itself."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.first: Any = None

    def __call__(self, *given: Any, **named: Any) -> Any:
        said = self._model(*given, **named)
        self.first = said if self.first is None else self.first
        return said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
