"""The format of labelled texts: `text`, perhaps `text_pair`, and `label`."""

from typing import Any

from trainer_core.data.messages import checked
from trainer_core.data.row_format import RowFormat, existing, text
from trainer_core.data.rows import LabelledText, Sample


def _labelled(values: dict[str, Any]) -> Sample:
    pair = values.get("text_pair")
    return LabelledText(
        text(values, "text"),
        None if pair is None else checked(pair, "text_pair"),
        existing(values, "label"),
    )


CLASSIFICATION = RowFormat(
    ("text", "text_pair", "label"), ("text", "label"), "`text` and `label`", _labelled
)
