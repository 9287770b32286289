"""The format of labelled images: `image` and `label`."""

from typing import Any

from trainer_core.data.row_format import RowFormat, existing
from trainer_core.data.rows import LabelledImage, Sample


def _labelled(values: dict[str, Any]) -> Sample:
    return LabelledImage(existing(values, "image"), existing(values, "label"))


LABELLED_IMAGES = RowFormat(
    ("image", "label"),
    ("image", "label"),
    "`image` and `label` (or images in one folder for each label)",
    _labelled,
)
