"""Names of metrics, known without computing any: the service checks specs by them."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "polar.metrics"
TEXT_METRICS = ("exact_match", "rouge1", "rouge2", "rougeL", "bleu")
"""Of answers that the model writes: `evaluation.generation` makes them."""
MEANS: Mapping[str, str] = {
    "loss": "loss",
    "mean_token_accuracy": "mean_token_accuracy",
    "reward": "reward",
    "reward_margin": "rewards/margins",
    "reward_accuracy": "rewards/accuracies",
    "cosine_accuracy": "triplet",
    "mrr": "reciprocal_rank",
    "ndcg": "discounted_gain",
}
"""Metric → the column whose mean it is, each row weighted by what carries loss in it."""
BUILT_IN = (
    *MEANS,
    "perplexity",
    "accuracy",
    "f1_macro",
    "f1_micro",
    "auc",
    "mse",
    "mae",
    "pearson",
    "pearson_cosine",
    "spearman_cosine",
    *TEXT_METRICS,
)


@cache
def plugged() -> Mapping[str, EntryPoint]:
    """Metrics of installed packages; a built-in name cannot be taken by one.

    Looked up once: to read what is installed takes longer than all else about a submission.
    """
    return {e.name: e for e in entry_points(group=GROUP) if e.name not in BUILT_IN}


def known_names() -> tuple[str, ...]:
    """Every name that `evaluation.metrics` may have."""
    return (*BUILT_IN, *plugged())
