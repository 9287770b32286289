"""Measures of an evaluation, gathered in memory that does not grow with the model's outputs.

Each keeps counts, or one or two numbers a row; logits are dropped batch by batch.
"""

import math
from collections.abc import Mapping, MutableMapping
from typing import Any


class LabelScores:
    """Accuracy, F1 and AUC; with `threshold` several labels may hold, else the likeliest one.

    As scikit-learn has them: macro F1 is the mean over the labels that occur in the rows or in the
    predictions, of labels that may hold together over all (over the one, where there is but one).
    Accuracy of several labels counts rows whose labels are all right. AUC needs two labels, one of
    them right.
    """

    needs_logits = True
    summed: tuple[str, ...] = ("_right", "_rows", "_counts", "_ranked")

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = threshold
        self._right = self._rows = 0
        self._counts: Any = None
        self._ranked: list[tuple[float, bool]] = []

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """One batch of logits (rows, labels)."""
        import torch

        labels = inputs["labels"].to(logits.device)
        size = logits.shape[-1]
        if self.threshold is None:
            truth = torch.nn.functional.one_hot(labels, size).bool()
            said = torch.nn.functional.one_hot(logits.argmax(-1), size).bool()
        else:
            truth, said = labels > 0, logits.sigmoid() > self.threshold
        if self.threshold is None and size == 2:
            differences = (logits[:, 1] - logits[:, 0]).tolist()
            self._ranked += zip(differences, (labels == 1).tolist(), strict=True)
        self._right += int((truth == said).all(-1).sum())
        self._rows += len(labels)
        counts = torch.stack(
            [(truth & said).sum(0), (~truth & said).sum(0), (truth & ~said).sum(0)]
        )
        self._counts = counts if self._counts is None else self._counts + counts

    def results(self, loss: float) -> dict[str, float]:  # noqa: ARG002 - the protocol's
        """Over all rows; {} without any."""
        if not self._rows:
            return {}
        hits, wrong, missed = self._counts.double()
        counted = ((hits + wrong + missed) > 0) | (self.threshold is not None)
        each = 2 * hits / (2 * hits + wrong + missed).clamp(min=1)
        total = 2 * hits.sum() + wrong.sum() + missed.sum()
        found = {
            "accuracy": self._right / self._rows,
            "f1_macro": float(each[counted].mean()),
            "f1_micro": float(2 * hits.sum() / total) if total else 0.0,
        }
        area = area_under_curve(self._ranked)
        return found if area is None else {**found, "auc": area}


class NumberScores:
    """Mean squared and absolute error, and Pearson's correlation, of one number a row."""

    needs_logits = True
    summed: tuple[str, ...] = ("_said", "_truth")

    def __init__(self) -> None:
        self._said: list[float] = []
        self._truth: list[float] = []

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """One batch of logits (rows, 1)."""
        self._said += logits.float().reshape(-1).tolist()
        self._truth += inputs["labels"].float().reshape(-1).tolist()

    def results(self, loss: float) -> dict[str, float]:  # noqa: ARG002 - the protocol's
        """Over all rows; {} without any."""
        count = len(self._said)
        if not count:
            return {}
        errors = [said - truth for said, truth in zip(self._said, self._truth, strict=True)]
        found = {
            "mse": math.fsum(e * e for e in errors) / count,
            "mae": math.fsum(map(abs, errors)) / count,
        }
        pearson = correlation(self._said, self._truth)
        return found if pearson is None else {**found, "pearson": pearson}


class Perplexity:
    """The exponential of the mean loss of a token."""

    needs_logits = False
    summed: tuple[str, ...] = ()

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:
        """Nothing: the loss is enough."""

    def results(self, loss: float) -> dict[str, float]:
        """Infinite where it is too large for a number."""
        return {"perplexity": math.exp(loss) if loss < 700 else math.inf}


class MaskedScores(Perplexity):
    """Perplexity, and the share of masked tokens that the model would fill in rightly."""

    needs_logits = True
    summed: tuple[str, ...] = ("_right", "_asked")

    def __init__(self) -> None:
        self._right = self._asked = 0

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """One batch of logits (masked tokens, vocabulary), in the order of the labels."""
        labels = inputs["labels"].to(logits.device)
        truth = labels[labels >= 0]
        self._right += int((logits.argmax(-1) == truth).sum())
        self._asked += len(truth)

    def results(self, loss: float) -> dict[str, float]:
        """Over all rows."""
        return {**super().results(loss), "masked_accuracy": self._right / max(self._asked, 1)}


class BatchMeans:
    """Means of what a library measures for each batch; `measured` is its list of values by name."""

    needs_logits = False
    summed: tuple[str, ...] = ("_sums", "_weights")

    def __init__(self, measured: MutableMapping[str, list[float]]) -> None:
        self._measured = measured
        self._sums: dict[str, float] = {}
        self._weights = 0.0

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """The newest values, which are taken away from the library."""
        for name, values in self._measured.items():
            self._sums[name] = self._sums.get(name, 0.0) + values[-1] * weight
        self._measured.clear()
        self._weights += weight

    def results(self, loss: float) -> dict[str, float]:  # noqa: ARG002 - the protocol's
        """Weighted means over all batches."""
        return {name: total / self._weights for name, total in self._sums.items()}


def area_under_curve(ranked: list[tuple[float, bool]]) -> float | None:
    """Chance that a right row is ranked above a wrong one (ties: half); None without both, and
    where a row's score is no number, which has no rank."""
    right = sum(is_right for _, is_right in ranked)
    wrong = len(ranked) - right
    if not right or not wrong or not all(math.isfinite(score) for score, _ in ranked):
        return None
    total, position = 0.0, 0
    ordered = sorted(ranked, key=lambda pair: pair[0])
    while position < len(ordered):
        end = position
        while end < len(ordered) and ordered[end][0] == ordered[position][0]:
            end += 1
        mean_rank = (position + 1 + end) / 2
        total += mean_rank * sum(is_right for _, is_right in ordered[position:end])
        position = end
    return (total - right * (right + 1) / 2) / (right * wrong)


def correlation(left: list[float], right: list[float]) -> float | None:
    """Pearson's correlation; None where one of both never changes."""
    count = len(left)
    means = math.fsum(left) / count, math.fsum(right) / count
    a = [value - means[0] for value in left]
    b = [value - means[1] for value in right]
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size if size else None
