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
_TOKENS = ("tokens", "documents", "pictured_texts")
_LABELS = ("labelled_texts", "labelled_images")
ROWS: Mapping[str, tuple[str, ...]] = {
    "mean_token_accuracy": _TOKENS,
    "perplexity": (*_TOKENS, "masked_documents"),
    "reward": ("prompts",),
    "reward_margin": ("preferences", "judged_answers"),
    "reward_accuracy": ("preferences",),
    **dict.fromkeys(("accuracy", "f1_macro", "f1_micro", "auc"), _LABELS),
    **dict.fromkeys(("mse", "mae", "pearson"), ("labelled_texts",)),
    **dict.fromkeys(("cosine_accuracy", "mrr", "ndcg"), ("texts",)),
    **dict.fromkeys(("pearson_cosine", "spearman_cosine"), ("texts",)),
}
"""Metric → kinds of rows (`TaskFacts.rows`) that can give it; one that is not here is of any."""
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
