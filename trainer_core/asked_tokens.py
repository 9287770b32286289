"""Losses of single tokens: the mean over all those of a step that a row asks for."""

from collections.abc import Mapping
from typing import Any

from trainer_core.loop import IGNORED, ExactLoop


class AskedTokens(ExactLoop):
    """Cross entropy of the tokens whose label is not −100.

    `shift` is how far behind the place that predicts it a token's label stands: 0, or 1 for models
    that write from left to right.
    """

    shift = 0

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,  # noqa: FBT001, FBT002 - Trainer's signature
        num_items_in_batch: Any = None,
    ) -> Any:
        """Summed loss of a batch over the asked tokens of the step (alone: those of the batch).

        Logits are handed on for asked tokens alone, in their order: (asked tokens, vocabulary).
        """
        from torch.nn import functional

        given = {name: value for name, value in inputs.items() if name != "labels"}
        labels = inputs["labels"][:, self.shift :]
        asked = labels != IGNORED
        logits = self.said(model, given)[:, : labels.shape[1]][asked].float()
        items = asked.sum() if num_items_in_batch is None else num_items_in_batch
        loss = functional.cross_entropy(logits, labels[asked], reduction="sum") / items
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def said(self, model: Any, given: Mapping[str, Any]) -> Any:
        """Logits (rows, length, vocabulary)."""
        return model(**given).logits

    def batch_weight(self, inputs: Mapping[str, Any]) -> float:
        """Asked tokens."""
        return int((inputs["labels"][:, self.shift :] != IGNORED).sum())

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:  # noqa: ARG002 - Trainer's signature
        return sum(int(self.batch_weight(batch)) for batch in batch_samples)
