"""Formats of conversations and texts: messages, ShareGPT, alpaca, prompt and completion, text."""

from collections.abc import Mapping
from typing import Any

from trainer_core.data.messages import (
    checked,
    kind,
    message,
    parsed,
    read_conversation,
    read_turns,
)
from trainer_core.data.row_format import RowFormat, existing, optional_text, text
from trainer_core.data.rows import BadRow, Conversation, Message, PlainText, Sample, Segments
from trainer_core.data.tool_calls import read_tools

TURNS = {
    "messages": ("messages", "conversations"),
    "sharegpt": ("conversations", "messages"),
    "image_messages": ("messages", "conversations"),
}
"""Formats that a list of turns decides: any of these columns will do, the first one first."""
_OURS = {"messages", "tools", "documents", "add_generation_prompt"}


def _messages(values: dict[str, Any]) -> Sample:
    turns, silent = read_conversation(_turns(values, "messages"), "messages")
    return Conversation(turns, given=_given(values), silent=silent)


def _sharegpt(values: dict[str, Any]) -> Sample:
    turns, silent = read_conversation(_turns(values, "sharegpt"), "conversations")
    system = values.get("system")
    if system is not None and system != "":
        if turns[0]["role"] == "system":
            raise BadRow("it has a system message both in `system` and in its turns: keep one")
        turns = [message("system", system, "system"), *turns]
        silent = frozenset(turn + 1 for turn in silent)
    return Conversation(turns, given=_given(values), silent=silent)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of the template that a row brings: its tools, and whatever else it names."""
    variables = values.get("chat_template_kwargs")
    if variables is not None and not isinstance(variables, dict):
        raise BadRow(f"`chat_template_kwargs` must be an object, not {kind(variables)}")
    taken = sorted(_OURS & set(variables or {}))
    if taken:
        raise BadRow(f"`chat_template_kwargs` may not set '{taken[0]}': take it out")
    tools = read_tools(values.get("tools"))
    return {**(variables or {}), **({} if tools is None else {"tools": tools})}


def _alpaca(values: dict[str, Any]) -> Sample:
    question = text(values, "instruction")
    if given := optional_text(values, "input"):
        question = f"{question}\n{given}"
    asked = message("user", question, "instruction")
    return Conversation(
        [*_before(values), asked, message("assistant", text(values, "output"), "output")]
    )


def _query_response(values: dict[str, Any]) -> Sample:
    asked = message("user", text(values, "query"), "query")
    answer = message("assistant", text(values, "response"), "response")
    return Conversation([*_before(values), asked, answer], given=_given(values))


def _before(values: Mapping[str, Any]) -> list[Message]:
    """The system message and earlier questions and answers."""
    turns: list[Message] = []
    if system := optional_text(values, "system"):
        turns.append(message("system", system, "system"))
    history = parsed(values.get("history"))
    if history is not None and history != "" and not isinstance(history, list):
        raise BadRow(f"`history` must be a list of [question, answer], not {kind(history)}")
    for pair in history or ():
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadRow("`history` must be a list of [question, answer]")
        turns.append(message("user", pair[0], "history"))
        turns.append(message("assistant", pair[1], "history"))
    return turns


def _prompt_completion(values: dict[str, Any]) -> Sample:
    prompt, completion = (existing(values, name) for name in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return PlainText(checked(prompt, "prompt"), checked(completion, "completion"))
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = read_turns(prompt, "prompt"), read_turns(completion, "completion")
        return Conversation([*before, *after], len(before), given=_given(values))
    raise BadRow(
        "`prompt` and `completion` must both be strings or both be lists of messages; they are "
        f"{kind(prompt)} and {kind(completion)}"
    )


def _segments(values: dict[str, Any]) -> Sample:
    pieces = parsed(existing(values, "segments"))
    if not isinstance(pieces, list):
        raise BadRow(f"`segments` must be a list of pieces, not {kind(pieces)}")
    if not pieces:
        raise BadRow("`segments` is an empty list: it must hold pieces of text")
    return Segments([_piece(piece, f"segments[{i}]") for i, piece in enumerate(pieces)])


def _piece(piece: Any, where: str) -> tuple[str, bool]:
    if not isinstance(piece, dict) or not isinstance(piece.get("label"), bool):
        raise BadRow(f"`{where}` must be an object with `text` and `label` (true: carries loss)")
    return checked(piece.get("text"), f"{where}.text"), piece["label"]


def _plain_text(values: dict[str, Any]) -> Sample:
    return PlainText("", text(values, "text"))


def _turns(values: Mapping[str, Any], format_: str) -> Any:
    for name in TURNS[format_]:
        if name in values:
            return values[name]
    return existing(values, TURNS[format_][0])


GIVEN = ("tools", "chat_template_kwargs")
"""Columns beside the turns, for the template."""
MESSAGES = RowFormat((*TURNS["messages"], *GIVEN), (), "`messages` (role, content)", _messages)
SHAREGPT = RowFormat(
    (*TURNS["sharegpt"], "system", *GIVEN), (), "`conversations` (from, value)", _sharegpt
)
ALPACA = RowFormat(
    ("instruction", "input", "output", "system", "history"),
    ("instruction", "output"),
    "`instruction` and `output`",
    _alpaca,
)
QUERY_RESPONSE = RowFormat(
    ("query", "response", "system", "history", *GIVEN),
    ("query", "response"),
    "`query` and `response`",
    _query_response,
)
SEGMENTS = RowFormat(("segments",), ("segments",), "`segments` (text, label)", _segments)
PROMPT_COMPLETION = RowFormat(
    ("prompt", "completion", *GIVEN),
    ("prompt", "completion"),
    "`prompt` and `completion`",
    _prompt_completion,
)
TEXT = RowFormat(("text",), ("text",), "`text`", _plain_text)
