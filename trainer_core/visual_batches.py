"""Batches of conversations about images: the processor's inputs, checked, and our labels."""

from typing import Any

from trainer_core.collator import IGNORED
from trainer_core.data.images import decoded
from trainer_core.errors import TrainerError
from trainer_core.meter import Meter


class VisualCollator:
    """Whatever the processor makes of texts and images, and `labels` of the same width."""

    def __init__(self, processor: Any, meter: Meter) -> None:
        self._processor = processor
        self._meter = meter

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch; raises TrainerError where tokens are not those that were prepared."""
        import torch

        self._meter.fetched(len(rows), sum(len(row["input_ids"]) for row in rows))
        images = [[decoded(data, "a prepared image") for data in row["images"]] for row in rows]
        made = self._processor(
            text=[row["text"] for row in rows],
            images=images,
            add_special_tokens=False,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        width = made["input_ids"].shape[1]
        for row, ids in zip(rows, made["input_ids"].tolist(), strict=True):
            if ids[: len(row["input_ids"])] != row["input_ids"]:
                raise TrainerError(
                    "the model's processor makes other tokens now than when the data was prepared: "
                    "prepare it with the same versions of the libraries"
                )
        labels = [row["labels"] + [IGNORED] * (width - len(row["labels"])) for row in rows]
        return {**made, "labels": torch.tensor(labels)}
