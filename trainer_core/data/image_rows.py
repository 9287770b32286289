"""Rows of labelled images: the image file as it is, and its label, for `image_classification`."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.images import decoded, found_image
from trainer_core.data.labels import LabelMap
from trainer_core.data.layout import Layout
from trainer_core.data.row_encoder import EncodingSetup, Numbered, Outcomes
from trainer_core.data.rows import BadRow, Place
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


class LabelledImageRows:
    """One row an image, which is decoded once here, so that a broken one is found before training.

    The label map is known when all training rows have been read.
    """

    staged = final = _LAYOUT
    max_length = row_limit = 1

    def __init__(self, setup: EncodingSetup) -> None:
        task = block_of(setup.spec, ImageClassificationTask)
        self._map = LabelMap(task.label_names)

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Image files, looked through, with provisional labels."""
        may_be_new = field.startswith("data.train")
        for place, sample in samples:
            try:
                yield place, self._row(place, sample, may_be_new=may_be_new)
            except BadRow as problem:
                yield place, problem

    def cut(self, row: LabelledImageRow, *, keep_end: bool) -> LabelledImageRow:
        """Never asked for: no row is too long."""
        raise NotImplementedError

    def split(self, row: LabelledImageRow) -> Sequence[LabelledImageRow]:
        """Never asked for."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The rows with their final label ids."""
        ids = self._map.final_ids()
        for number in chosen:
            row = rows[number]
            yield row | {"labels": ids[row["labels"]]}

    def facts(self) -> dict[str, Any]:
        """The names of the labels in the order of their ids."""
        return {"labels": self._map.names()}

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
