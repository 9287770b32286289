"""Batches from tokenised rows: padded to the longest row, padding by length and never by id."""

from typing import Any

from trainer_core.meter import Meter

IGNORED = -100


class Collator:
    """Turns prepared rows into tensors of shape (rows, longest row).

    Packed rows carry `position_ids` that restart with each sample and no attention mask: with an
    all-ones mask models take a row for one document, and its samples would see each other.
    `flatten` lays all rows of a batch into one, as variable-length kernels want it; rows that are
    not packed get their `position_ids` then. The width is rounded up to a `multiple`.
    """

    def __init__(
        self,
        pad_token_id: int,
        meter: Meter | None = None,
        *,
        flatten: bool = False,
        multiple: int = 1,
    ) -> None:
        self._pad = pad_token_id
        self._meter = meter
        self._flatten = flatten
        self._multiple = multiple

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, Any]:
        """One batch; `labels` are −100 wherever nothing is learned."""
        packed = "position_ids" in rows[0]
        self._count(rows, packed=packed)
        if self._flatten:
            rows = [_joined(rows)]
            packed = True
        longest = max(len(row["input_ids"]) for row in rows)
        width = -(-longest // self._multiple) * self._multiple
        batch = {
            "input_ids": self._tensor(rows, "input_ids", width, self._pad),
            "labels": self._tensor(rows, "labels", width, IGNORED),
        }
        if packed:
            batch["position_ids"] = self._positions(rows, width)
            # The first token of a sample follows another sample: it is nobody's target.
            batch["labels"].masked_fill_(batch["position_ids"] == 0, IGNORED)
        else:
            batch["attention_mask"] = self._mask(rows, width)
        return batch

    def _count(self, rows: list[dict[str, list[int]]], *, packed: bool) -> None:
        if self._meter is not None:
            samples = sum(row["position_ids"].count(0) for row in rows) if packed else len(rows)
            self._meter.fetched(samples, sum(len(row["input_ids"]) for row in rows))

    def _tensor(self, rows: list[dict[str, list[int]]], name: str, width: int, fill: int) -> Any:
        import torch

        return torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])

    def _positions(self, rows: list[dict[str, list[int]]], width: int) -> Any:
        import torch

        # Padding counts from 0 again, so that it is a document of its own.
        return torch.tensor(
            [[*row["position_ids"], *range(width - len(row["position_ids"]))] for row in rows]
        )

    def _mask(self, rows: list[dict[str, list[int]]], width: int) -> Any:
        import torch

        lengths = [len(row["input_ids"]) for row in rows]
        return torch.tensor([[1] * n + [0] * (width - n) for n in lengths])


def _joined(rows: list[dict[str, list[int]]]) -> dict[str, list[int]]:
    """All rows as one; each counts its positions from 0."""
    whole = [{"position_ids": [*range(len(row["input_ids"]))], **row} for row in rows]
    return {name: [value for row in whole for value in row[name]] for name in whole[0]}
