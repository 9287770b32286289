"""What a metric is, and what it is computed from.

    trainer (a task's own, on a backend) ─ rows one by one ─► Columns ─ Metric ─► value, interval
    model ─ generate ─► answers ─────────────────────────────┘

A metric is a plain object of the shape `Metric`. Others than the built-in ones come from installed
packages, by the entry point group `polar.metrics`; nothing of a request is ever run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Columns = Mapping[str, Sequence[Any]]
"""Values of the same rows: column → one value a row. What a task gives stands in `COLUMNS`."""

COLUMNS = {
    "loss": "mean loss of what carries loss in the row",
    "weight": "how much of it there is: tokens, labels or pairs",
    "label": "the right label's id; with several labels a list of 0 and 1",
    "predicted": "the same, as the model says it",
    "score": "of two labels: how much likelier the second one is, as a logit",
    "number": "regression: the right number",
    "said": "regression: the model's number",
    "cosine": "sentence embeddings: cosine of the row's pair",
    "likeness": "sentence embeddings: what the row says about it",
    "triplet": "sentence embeddings: 1 where the positive is nearer than every negative",
    "reciprocal_rank": "sentence embeddings: of a query's first positive, 0 below the tenth",
    "discounted_gain": "sentence embeddings: a query's normalised gain among ten",
    "generated": "the model's answer",
    "reference": "the row's answer",
}
"""Further columns are a library's own measures of a row, such as `rewards/margins`."""


class Metric(Protocol):
    """One number for a model on rows, computed in two steps so that rows can be resampled."""

    @property
    def name(self) -> str:
        """As specs call it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns, all of the same rows."""

    @property
    def greater_is_better(self) -> bool:
        """Which way is a gain."""

    def statistics(self, columns: Columns) -> Any:
        """What matters of each row: a numpy array whose first axis is the rows."""

    def value(self, statistics: Any) -> float | None:
        """The metric of those rows (or a resampling of them); None where it is not defined."""
