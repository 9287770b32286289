"""Measures of answers, token by token."""

from trainer_core.measures import MaskedScores, Perplexity


class TokenScores(MaskedScores):
    """Perplexity, and the share of trained tokens that the model would have written itself."""

    def results(self, loss: float) -> dict[str, float]:
        """Over all rows."""
        right = self._right / max(self._asked, 1)
        return {**Perplexity().results(loss), "mean_token_accuracy": right}
