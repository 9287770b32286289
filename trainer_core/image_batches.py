"""Batches of labelled images: decoded, changed at random in training, and read by the processor."""

from typing import Any

from trainer_core.augment import augmented
from trainer_core.data.images import decoded
from trainer_core.meter import Meter
from trainer_core.row_draws import DRAW, generator
from trainer_core.spec import Augmentation


class ImageCollator:
    """`pixel_values` of shape (rows, channels, height, width) and `labels` of (rows,).

    Only rows of an epoch of training are augmented; those of epoch 0 are validation rows.
    """

    def __init__(self, processor: Any, meter: Meter, wish: Augmentation | None) -> None:
        self._processor = processor
        self._meter = meter
        self._wish = wish

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """One batch."""
        import torch

        self._meter.fetched(len(rows), len(rows))
        images = [self._image(row) for row in rows]
        pixels = self._processor(images=images, return_tensors="pt")["pixel_values"]
        return {"pixel_values": pixels, "labels": torch.tensor([row["labels"] for row in rows])}

    def _image(self, row: dict[str, Any]) -> Any:
        [data] = row["images"]
        image = decoded(data, "a prepared image")
        _, epoch, _ = row[DRAW]
        if self._wish is None or not epoch:
            return image
        return augmented(image, self._wish, generator(row[DRAW]))
