"""Rows of labelled images: the image file as it is, and its label, for `image_classification`."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_core.data.images import decoded, found_image
from trainer_core.data.label_rows import LabelRows
from trainer_core.data.layout import Layout
from trainer_core.data.row_encoder import EncodingSetup
from trainer_core.data.rows import Place
from trainer_core.spec import ImageClassificationTask
from trainer_core.task_facts import block_of

_LAYOUT = Layout({"images": "files", "labels": "int"}, ())


@dataclass(frozen=True, slots=True)
class LabelledImageRow:
    """One image file with its size in words; `label` is provisional until all are known."""

    place: Place
    image: bytes
    size: str
    said: Any
    label: int

    @property
    def values(self) -> Mapping[str, Any]:
        """The file and its label."""
        return {"images": [self.image], "labels": self.label}

    @property
    def longest(self) -> int:
        """An image counts as one token: what it is to a model, the model decides."""
        return 1

    @property
    def trained(self) -> int:
        """One label."""
        return 1

    @property
    def content(self) -> Sequence[int]:
        """A hash of the file as numbers."""
        return digits_of(self.image)

    @property
    def answer(self) -> Sequence[int]:
        """Its label."""
        return [self.label]


class LabelledImageRows(LabelRows):
    """One row an image, which is decoded once here, so that a broken one is found before training.

    The label map is known when all training rows have been read.
    """

    staged = final = _LAYOUT
    max_length = row_limit = 1

    def __init__(self, setup: EncodingSetup) -> None:
        task = block_of(setup.spec, ImageClassificationTask)
        super().__init__(task.label_names)

    def cut(self, row: LabelledImageRow, *, keep_end: bool) -> LabelledImageRow:
        """Never asked for: no row is too long."""
        raise NotImplementedError

    def example(self, row: LabelledImageRow) -> dict[str, Any]:
        """The first image in words, and its label as the row said it."""
        return {"text": f"an image of {row.size} pixels", "trained": [str(row.said)]}

    def _row(self, place: Place, sample: Any, *, may_be_new: bool) -> LabelledImageRow:
        data, name = found_image(sample.image, "image", place)
        picture = decoded(data, name)
        label = self._map.number(sample.label, may_be_new=may_be_new)
        size = f"{picture.width} × {picture.height}"
        return LabelledImageRow(place, data, size, sample.label, label)


def digits_of(data: bytes) -> list[int]:
    """A hash of bytes as whole numbers."""
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return [int(number) for number in np.frombuffer(digest, dtype="<i4")]
