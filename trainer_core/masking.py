"""Masks of masked language modelling, drawn for each row and epoch, and batches with them."""

from dataclasses import dataclass
from typing import Any

from trainer_core.meter import Meter
from trainer_core.row_draws import DRAW, generator

IGNORED = -100
_MASKED, _RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become the mask token, and that become any other one."""


@dataclass(frozen=True)
class MaskRules:
    """What masks are made of: the mask token, and an array of ids that may stand in for others."""

    mask_token_id: int
    replacements: Any
    probability: float

    @classmethod
    def of(cls, tokenizer: Any, probability: float) -> "MaskRules":
        """Those of a tokenizer: every token that is not special may stand in for another."""
        import numpy as np  # noqa: PLC0415 - tasks load without it

        others = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
        return cls(tokenizer.mask_token_id, others, probability)


def masked(row: dict[str, Any], rules: MaskRules) -> tuple[list[int], list[int]]:
    """Tokens with masks, and labels: the token itself where one was chosen, else −100.

    A token is chosen with the rules' probability, or all tokens of a word are; never one whose
    label is −100. A row in which chance chose none gets one, so that it is never without loss.
    """
    import numpy as np  # noqa: PLC0415 - tasks load without it

    random = generator(row[DRAW])
    ids, labels = np.array(row["input_ids"]), np.array(row["labels"])
    units = _units(row, labels)
    count = units.max() + 1
    hit = random.random(count) < rules.probability
    if not hit.any():
        hit[random.integers(count)] = True
    chosen = (units >= 0) & hit[units]
    fate = random.random(len(ids))
    others = random.integers(len(rules.replacements), size=len(ids))
    ids[chosen & (fate < _MASKED)] = rules.mask_token_id
    swapped = chosen & (fate >= _MASKED) & (fate < _MASKED + _RANDOM)
    ids[swapped] = rules.replacements[others[swapped]]
    labels[~chosen] = IGNORED
    return ids.tolist(), labels.tolist()


def _units(row: dict[str, Any], labels: Any) -> Any:
    """What is chosen together, numbered from 0: a token, or a word; −1 is never chosen."""
    import numpy as np  # noqa: PLC0415 - tasks load without it

    may = labels != IGNORED
    starts = may & (np.array(row["word_starts"]) > 0) if "word_starts" in row else may
    first = np.flatnonzero(may)[:1]
    starts[first] = True  # the rest of a word that the row before began
    return np.where(may, np.cumsum(starts) - 1, -1)


class MaskingCollator:
    """Tensors of shape (rows, longest row), or (rows, `width`), with masks drawn for each row."""

    def __init__(
        self, rules: MaskRules, pad_token_id: int, meter: Meter, width: int | None = None
    ) -> None:
        self._rules = rules
        self._pad = pad_token_id
        self._meter = meter
        self._width = width

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch."""
        import torch

        lengths = [len(row["input_ids"]) for row in rows]
        self._meter.fetched(len(rows), sum(lengths))
        width = self._width or max(lengths)
        ids, labels = zip(*(masked(row, self._rules) for row in rows), strict=True)
        return {
            "input_ids": torch.tensor([_padded(row, width, self._pad) for row in ids]),
            "labels": torch.tensor([_padded(row, width, IGNORED) for row in labels]),
            "attention_mask": torch.tensor([[1] * n + [0] * (width - n) for n in lengths]),
        }


def _padded(values: list[int], width: int, fill: int) -> list[int]:
    return values + [fill] * (width - len(values))
