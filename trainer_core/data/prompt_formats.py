"""The format of prompts: what the model is to answer, and columns that rewards read."""

import json
from typing import Any

from trainer_core.data.messages import checked, kind, parsed, read_turns
from trainer_core.data.row_format import RowFormat, existing
from trainer_core.data.rows import BadRow, Conversation, PlainText, Prompt, Sample
from trainer_core.data.tool_calls import read_tools


def _prompt(values: dict[str, Any]) -> Sample:
    asked = parsed(existing(values, "prompt"))
    given = {name: value for name, value in values.items() if name not in ("prompt", "tools")}
    if isinstance(asked, str):
        return Prompt(PlainText(checked(asked, "prompt"), ""), given)
    if not isinstance(asked, list):
        raise BadRow(f"`prompt` must be a string or a list of messages, not {kind(asked)}")
    turns = read_turns(asked, "prompt")
    if turns[-1]["role"] == "assistant":
        raise BadRow("`prompt` ends with an answer: it must end with what is to be answered")
    tools = read_tools(values.get("tools"))
    return Prompt(Conversation(turns, given={} if tools is None else {"tools": tools}), given)


def as_text(value: Any, column: str) -> str:
    """A value of a column that a reward reads, as text; raises BadRow for null."""
    if value is None:
        raise BadRow(f"`{column}` is null, but a reward reads it")
    if isinstance(value, str):
        return checked(value, column)
    return json.dumps(value, ensure_ascii=False)


PROMPT = RowFormat(("prompt", "answer", "tools"), ("prompt",), "`prompt`", _prompt)
