"""Batches of rows that end in a label: token columns padded to the longest row."""

from typing import Any

from trainer_core.meter import Meter


class PaddedCollator:
    """Tensors of shape (rows, longest row) for token columns, (rows, …) for `labels`.

    Padding is masked by length and never by id. Without `meter` nothing is counted.
    """

    def __init__(self, pad_token_id: int, meter: Meter | None = None) -> None:
        self._fill = {"input_ids": pad_token_id}
        self._meter = meter

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch."""
        import torch

        lengths = [len(row["input_ids"]) for row in rows]
        if self._meter is not None:
            self._meter.fetched(len(rows), sum(lengths))
        width = max(lengths)
        batch: dict[str, Any] = {
            name: torch.tensor(
                [row[name] + [self._fill.get(name, 0)] * (width - len(row[name])) for row in rows]
            )
            for name in rows[0]
            if name != "labels"
        }
        batch["attention_mask"] = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
        batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch
