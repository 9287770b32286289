"""Formats of answers that are called desirable or not: a prompt, an answer and a boolean."""

from typing import Any

from trainer_core.data.chat_formats import PROMPT_COMPLETION
from trainer_core.data.messages import kind, read_turns
from trainer_core.data.row_format import RowFormat, existing
from trainer_core.data.rows import BadRow, Conversation, Judged, PlainText, Sample

_SAID = {"true": True, "false": False, "1": True, "0": False}


def _unpaired(values: dict[str, Any]) -> Sample:
    answered = PROMPT_COMPLETION.convert(values)
    if not isinstance(answered, Conversation | PlainText):
        raise TypeError(f"an answer expected, not {type(answered).__name__}")
    return Judged(answered, _label(values))


def _conversation(values: dict[str, Any]) -> Sample:
    turns = read_turns(existing(values, "messages"), "messages")
    if turns[-1]["role"] != "assistant":
        raise BadRow("the last message is not the assistant's: there is no answer to judge")
    return Judged(Conversation(turns, len(turns) - 1), _label(values))


def _label(values: dict[str, Any]) -> bool:
    """True: desirable. Also as 0 or 1, and as text (CSV)."""
    label = existing(values, "label")
    if isinstance(label, bool) or (isinstance(label, int) and label in (0, 1)):
        return bool(label)
    if isinstance(label, str) and label.strip().lower() in _SAID:
        return _SAID[label.strip().lower()]
    shown = f"'{label}'" if isinstance(label, str | int | float) else kind(label)
    raise BadRow(f"`label` is {shown}: it must be true (desirable) or false")


UNPAIRED_PREFERENCE = RowFormat(
    ("prompt", "completion", "label"),
    ("prompt", "completion", "label"),
    "`prompt`, `completion` and `label` (true or false)",
    _unpaired,
)
JUDGED_MESSAGES = RowFormat(
    ("messages", "label"),
    ("messages", "label"),
    "`messages` and `label` (true or false), which is about the last one",
    _conversation,
)
