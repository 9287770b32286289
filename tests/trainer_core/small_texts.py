"""Rows of texts that belong together, for sentence embeddings, and of judged answers."""

import random
from typing import Any

from tests.trainer_core.small_tasks import BAD, GOOD, THINGS, preferences


def _said(rng: random.Random, thing: str, words: list[str]) -> str:
    return f"the {thing} was {rng.choice(words)} and {rng.choice(words)}"


def triplets(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """An opinion, another of the same kind about the same thing, and one of the other kind."""
    rng = random.Random(seed)  # noqa: S311 - test data
    rows = []
    for _ in range(count):
        thing = rng.choice(THINGS)
        kinds = (GOOD, BAD) if rng.random() < 0.5 else (BAD, GOOD)
        anchor, positive = (_said(rng, thing, kinds[0]) for _ in range(2))
        rows.append(
            {"anchor": anchor, "positive": positive, "negative": _said(rng, thing, kinds[1])}
        )
    return rows


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Without the negatives."""
    return [{"anchor": row["anchor"], "positive": row["positive"]} for row in triplets(count, seed)]


def scored(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Two opinions, and how alike they are: 1 of the same kind, 0 of different kinds."""
    rows = triplets(count, seed)
    return [
        {
            "sentence1": row["anchor"],
            "sentence2": row["positive" if i % 2 else "negative"],
            "score": float(i % 2),
        }
        for i, row in enumerate(rows)
    ]


def judged(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The same with `label` 0 or 1."""
    return [
        {"sentence1": r["sentence1"], "sentence2": r["sentence2"], "label": int(r["score"])}
        for r in scored(count, seed)
    ]


def answers(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """A friendly or a rude answer to each question."""
    return [
        {
            "prompt": row["prompt"],
            "completion": row["chosen" if i % 3 else "rejected"],
            "label": bool(i % 3),
        }
        for i, row in enumerate(preferences(count, seed))
    ]
