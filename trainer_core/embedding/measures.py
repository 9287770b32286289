"""Measures of embeddings on the validation rows, by the names of Sentence Transformers.

Vectors are compared by their cosine. A number or two a row are kept; only finding positives among
all texts (`ir`) keeps the vectors themselves.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer_core.embedding.losses import BINARY, NONE, NUMBER, Shape
from trainer_core.measures import area_under_curve, correlation

_CUT = 100
_AT = 10
_QUERIES_AT_ONCE = 256
Embedded = Sequence[Any]
"""Vectors of length 1, a tensor (rows, size) for each text of the rows."""


def evaluators_for(shape: Shape) -> list[str]:
    """All that the shape of the rows allows."""
    if shape.label == NONE and shape.texts > 1:
        return ["ir", "triplet"] if shape.texts > 2 else ["ir"]
    if shape.texts == 2 and shape.label in (NUMBER, BINARY):
        return ["similarity" if shape.label == NUMBER else "binary"]
    return []


class EmbeddingScores:
    """What `evaluators` measure; `embed` turns a batch into the vectors of its texts."""

    needs_logits = False
    summed: tuple[str, ...] = ()

    def __init__(
        self, embed: Callable[[Mapping[str, Any]], Embedded], evaluators: Sequence[str]
    ) -> None:
        self._embed = embed
        self._parts = [_PARTS[name]() for name in evaluators]

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """One batch."""
        if not self._parts:
            return
        vectors = self._embed(inputs)
        for part in self._parts:
            part.add(vectors, inputs)

    def results(self, loss: float) -> dict[str, float]:  # noqa: ARG002 - the protocol's
        """Over all batches."""
        return {name: value for part in self._parts for name, value in part.results().items()}

    def groups(self) -> list[dict[str, list[Any]]]:
        """Values of each row (or query) by column, as `evaluation.protocol.COLUMNS` names them."""
        return [part.columns() for part in self._parts]


class _Pairs:
    """Cosines of pairs and what the rows say about them."""

    def __init__(self) -> None:
        self.cosines: list[float] = []
        self.labels: list[float] = []

    def add(self, vectors: Embedded, inputs: Mapping[str, Any]) -> None:
        self.cosines += (vectors[0] * vectors[1]).sum(-1).tolist()
        self.labels += inputs["label"].float().tolist()

    def columns(self) -> dict[str, list[Any]]:
        return {"cosine": self.cosines, "likeness": self.labels}


class _Similarity(_Pairs):
    """Correlation of cosines with the rows' numbers."""

    def results(self) -> dict[str, float]:
        found = {
            "pearson_cosine": correlation(self.cosines, self.labels),
            "spearman_cosine": correlation(_ranks(self.cosines), _ranks(self.labels)),
        }
        return {name: value for name, value in found.items() if value is not None}


class _Binary(_Pairs):
    """How well a threshold on the cosine tells pairs that belong together from others."""

    def results(self) -> dict[str, float]:
        ranked = sorted(zip(self.cosines, self.labels, strict=True), reverse=True)
        right = sum(label > 0 for _, label in ranked)
        if not right:
            return {}
        hits = 0
        accuracy = f1 = precision_sum = 0.0
        groups = _tied(ranked)
        seen = 0
        for group in groups:
            before = hits
            hits += sum(label > 0 for label in group)
            seen += len(group)
            precision_sum += (hits - before) * hits / seen
            accuracy = max(accuracy, (hits + len(ranked) - right - (seen - hits)) / len(ranked))
            f1 = max(f1, 2 * hits / (seen + right))
        area = area_under_curve([(cosine, label > 0) for cosine, label in ranked])
        found = {
            "cosine_accuracy": max(accuracy, (len(ranked) - right) / len(ranked)),
            "cosine_f1": f1,
            "cosine_ap": precision_sum / right,
        }
        return found if area is None else {**found, "cosine_auc": area}


class _Triplets:
    """Rows whose anchor is closer to its positive than to every negative."""

    def __init__(self) -> None:
        self._right: list[float] = []

    def add(self, vectors: Embedded, inputs: Mapping[str, Any]) -> None:  # noqa: ARG002 - as the others
        positive = (vectors[0] * vectors[1]).sum(-1)
        wrong = [(vectors[0] * negative).sum(-1) >= positive for negative in vectors[2:]]
        self._right += (~sum(wrong).bool()).float().tolist()

    def results(self) -> dict[str, float]:
        return {"cosine_accuracy": sum(self._right) / len(self._right)} if self._right else {}

    def columns(self) -> dict[str, list[Any]]:
        return {"triplet": self._right}


class _Retrieval:
    """Finding each anchor's positives among all other texts of the rows; equal texts are one."""

    def __init__(self) -> None:
        self._queries: dict[tuple[int, ...], Any] = {}
        self._texts: dict[tuple[int, ...], tuple[int, Any]] = {}
        self._relevant: dict[tuple[int, ...], set[int]] = {}

    def add(self, vectors: Embedded, inputs: Mapping[str, Any]) -> None:
        keys = [_keys(inputs, number) for number in range(len(vectors))]
        for number, column in enumerate(vectors[1:], start=1):
            for key, vector in zip(keys[number], column, strict=True):
                self._texts.setdefault(key, (len(self._texts), vector))
        for anchor, positive, vector in zip(keys[0], keys[1], vectors[0], strict=True):
            self._queries.setdefault(anchor, vector)
            self._relevant.setdefault(anchor, set()).add(self._texts[positive][0])

    def results(self) -> dict[str, float]:
        each = list(self._rankings())
        names = each[0] if each else {}
        return {name: sum(found[name] for found in each) / len(each) for name in names}

    def columns(self) -> dict[str, list[Any]]:
        each = list(self._rankings())
        return {
            "reciprocal_rank": [found[f"cosine_mrr_at_{_AT}"] for found in each],
            "discounted_gain": [found[f"cosine_ndcg_at_{_AT}"] for found in each],
        }

    def _rankings(self) -> Iterator[dict[str, float]]:
        """Measures of each query's ranking."""
        import torch

        if not self._queries:
            return
        corpus = torch.stack([vector for _, vector in self._texts.values()])
        names = list(self._queries)
        for start in range(0, len(names), _QUERIES_AT_ONCE):
            some = names[start : start + _QUERIES_AT_ONCE]
            cosines = torch.stack([self._queries[name] for name in some]) @ corpus.T
            nearest = cosines.topk(min(_CUT, len(corpus)), dim=-1).indices.tolist()
            for name, found in zip(some, nearest, strict=True):
                yield _ranking(found, self._relevant[name])


def _ranking(found: Sequence[int], relevant: set[int]) -> dict[str, float]:
    """Measures of one query's ranking."""
    hits = [text in relevant for text in found]
    gain = sum(hit / math.log2(rank + 2) for rank, hit in enumerate(hits[:_AT]))
    ideal = sum(1 / math.log2(rank + 2) for rank in range(min(_AT, len(relevant))))
    first = next((rank for rank, hit in enumerate(hits[:_AT]) if hit), None)
    precisions = [sum(hits[: rank + 1]) / (rank + 1) for rank, hit in enumerate(hits) if hit]
    return {
        "cosine_accuracy_at_1": float(hits[0]),
        f"cosine_recall_at_{_AT}": sum(hits[:_AT]) / len(relevant),
        f"cosine_mrr_at_{_AT}": 0.0 if first is None else 1 / (first + 1),
        f"cosine_ndcg_at_{_AT}": gain / ideal,
        f"cosine_map_at_{_CUT}": sum(precisions) / min(_CUT, len(relevant)),
    }


def _keys(inputs: Mapping[str, Any], number: int) -> list[tuple[int, ...]]:
    """The tokens of each row's text without padding."""
    ids = inputs[f"text_{number}_input_ids"].tolist()
    lengths = inputs[f"text_{number}_attention_mask"].sum(-1).tolist()
    return [tuple(row[:length]) for row, length in zip(ids, lengths, strict=True)]


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = (start + 1 + end) / 2
        start = end
    return ranks


def _tied(ranked: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Labels in order, those of equal cosines together."""
    groups: list[list[float]] = []
    last: float | None = None
    for cosine, label in ranked:
        if cosine != last:
            groups.append([])
        groups[-1].append(label)
        last = cosine
    return groups


_PARTS: dict[str, Callable[[], Any]] = {
    "similarity": _Similarity,
    "binary": _Binary,
    "triplet": _Triplets,
    "ir": _Retrieval,
}
METRICS = (
    "pearson_cosine",
    "spearman_cosine",
    "cosine_accuracy",
    "cosine_f1",
    "cosine_ap",
    "cosine_auc",
    "cosine_accuracy_at_1",
    f"cosine_recall_at_{_AT}",
    f"cosine_mrr_at_{_AT}",
    f"cosine_ndcg_at_{_AT}",
    f"cosine_map_at_{_CUT}",
)
