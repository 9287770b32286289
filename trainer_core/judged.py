"""Answers that are desirable or not: batches with mismatched answers beside them, and measures."""

import random
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from trainer_core.meter import Meter

PARTNER = "partner"
_REFERENCES = ("ref_logps", "ref_KL_logps")
_CHOSEN, _REJECTED, _MARGINS = "rewards/chosen", "rewards/rejected", "rewards/margins"


def partners(count: int, seed: int) -> list[int]:
    """For each row another one, whose answer does not belong to its prompt; each serves once."""
    order = list(range(count))
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret
    before = dict(zip(order, [order[-1], *order[:-1]], strict=True))
    return [before[number] for number in range(count)]


class JudgedCollator:
    """Tensors of shape (rows, longest) of prompts with their answers (`input_ids`, …) and with the
    answers of their partners (`KL_input_ids`, …), and `label`: whether the answer is desirable.

    `completion_mask` is 1 where a token carries loss. Padding is masked by length. Without `rows`,
    the data set that partners are taken from, there are none.
    """

    def __init__(self, pad_token_id: int, rows: Any = None, meter: Meter | None = None) -> None:
        self.pad_token_id = pad_token_id
        self._rows = rows
        self._meter = meter

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One batch."""
        import torch

        own = [(row["input_ids"], row["labels"]) for row in rows]
        if self._meter is not None:
            self._meter.fetched(len(rows), sum(len(ids) for ids, _ in own))
        batch = self._padded(own, "")
        if self._rows is not None:
            batch |= self._padded([self._mismatched(row) for row in rows], "KL_")
        batch["label"] = torch.tensor([bool(row["label"]) for row in rows])
        for name in _REFERENCES:
            if name in rows[0]:
                batch[name] = torch.tensor([row[name] for row in rows])
        return batch

    def _mismatched(self, row: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """This row's prompt with its partner's answer."""
        other = self._rows[row[PARTNER]]
        start, behind = _answer_at(row["labels"]), _answer_at(other["labels"])
        ids = [*row["input_ids"][:start], *other["input_ids"][behind:]]
        return ids, [*row["labels"][:start], *other["labels"][behind:]]

    def _padded(self, pairs: Sequence[tuple[list[int], list[int]]], prefix: str) -> dict[str, Any]:
        import torch

        width = max(len(ids) for ids, _ in pairs)
        found = {
            "input_ids": [ids + [self.pad_token_id] * (width - len(ids)) for ids, _ in pairs],
            "attention_mask": [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in pairs],
            "completion_mask": [
                [int(label != -100) for label in labels] + [0] * (width - len(labels))
                for _, labels in pairs
            ],
        }
        return {f"{prefix}{name}": torch.tensor(values) for name, values in found.items()}


def _answer_at(labels: Sequence[int]) -> int:
    return next(i for i, label in enumerate(labels) if label != -100)


class JudgedMeans:
    """Means of what the library measures for each batch: of desirable answers over these, of
    undesirable ones over those, of anything else over all rows."""

    needs_logits = False
    summed: tuple[str, ...] = ("_sums",)

    def __init__(self, measured: MutableMapping[str, list[float]]) -> None:
        self._measured = measured
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, inputs: Mapping[str, Any], logits: Any, weight: float) -> None:  # noqa: ARG002 - the protocol's
        """The newest values, which are taken away from the library."""
        chosen = float(inputs["label"].sum())
        for name, values in self._measured.items():
            side = name.rpartition("/")[2]
            count = {"chosen": chosen, "rejected": weight - chosen}.get(side, weight)
            total, rows = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (total + values[-1] * count, rows + count)
        self._measured.clear()

    def results(self, loss: float) -> dict[str, float]:  # noqa: ARG002 - the protocol's
        """Over all batches; the margin lies between the means of both sides."""
        found = {name: total / rows for name, (total, rows) in self._sums.items() if rows}
        found.pop(_MARGINS, None)
        if _CHOSEN in found and _REJECTED in found:
            found[_MARGINS] = found[_CHOSEN] - found[_REJECTED]
        return found
