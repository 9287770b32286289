"""Batches of rows with several texts, and the order in which they come."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.meter import Meter

LABEL = "label"


def text_columns(names: list[str]) -> list[str]:
    """The columns of a row that hold tokens, in the order of its texts."""
    return sorted(
        (name for name in names if name != LABEL), key=lambda n: int(n.rpartition("_")[2])
    )


class TextCollator:
    """Tensors as the library's losses take them: `text_0_input_ids`, `text_0_attention_mask`, …,
    each of shape (rows, longest), and `label`.

    `prompt_lengths` are tokens that pooling leaves out, by column. Padding is masked by length.
    """

    def __init__(
        self,
        pad_token_id: int,
        meter: Meter | None = None,
        prompt_lengths: Mapping[str, int] | None = None,
    ) -> None:
        self.valid_label_columns = [LABEL]  # the library's samplers read it
        self._pad = pad_token_id
        self._meter = meter
        self._prompt_lengths = prompt_lengths or {}

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch."""
        import torch

        batch: dict[str, Any] = {}
        tokens = 0
        for name in text_columns(list(rows[0])):
            lengths = [len(row[name]) for row in rows]
            width = max(lengths)
            tokens += sum(lengths)
            padded = [row[name] + [self._pad] * (width - len(row[name])) for row in rows]
            batch[f"{name}_input_ids"] = torch.tensor(padded)
            batch[f"{name}_attention_mask"] = torch.tensor(
                [[1] * n + [0] * (width - n) for n in lengths]
            )
            if name in self._prompt_lengths:
                batch[f"{name}_prompt_length"] = self._prompt_lengths[name]
        if LABEL in rows[0]:
            batch[LABEL] = torch.tensor([row[LABEL] for row in rows])
        if self._meter is not None:
            self._meter.fetched(len(rows), tokens)
        return batch


class Shuffled:
    """Numbers of all rows in an order that the seed and the epoch decide."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the loop before each epoch, also the one that a resumed run begins in."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = list(range(self._count))
        random.Random(f"{self._seed}-{self._epoch}").shuffle(order)  # noqa: S311 - no secret
        return iter(order)

    def __len__(self) -> int:
        return self._count
