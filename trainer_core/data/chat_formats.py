"""Formats of conversations and texts: messages, ShareGPT, alpaca, prompt and completion, text."""

from collections.abc import Mapping
from typing import Any

from trainer_core.data.messages import checked, kind, message, parsed, read_turns
from trainer_core.data.row_format import RowFormat, existing, optional_text, text
from trainer_core.data.rows import BadRow, Conversation, Message, PlainText, Sample

TURNS = {"messages": ("messages", "conversations"), "sharegpt": ("conversations", "messages")}
"""Formats that a list of turns decides: any of these columns will do, the first one first."""


def _messages(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    return Conversation(read_turns(_turns(values, "messages"), "messages"))


def _sharegpt(values: dict[str, Any]) -> Sample:
    if values.get("tools"):
        raise BadRow("it has `tools`, but this task cannot learn tool calls: take them out")
    turns = read_turns(_turns(values, "sharegpt"), "conversations")
    system = values.get("system")
    if system is not None and system != "":
        if turns[0]["role"] == "system":
            raise BadRow("it has a system message both in `system` and in its turns: keep one")
        turns = [message("system", system, "system"), *turns]
    return Conversation(turns)


def _alpaca(values: dict[str, Any]) -> Sample:
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
    question = text(values, "instruction")
    if given := optional_text(values, "input"):
        question = f"{question}\n{given}"
    turns.append(message("user", question, "instruction"))
    turns.append(message("assistant", text(values, "output"), "output"))
    return Conversation(turns)


def _prompt_completion(values: dict[str, Any]) -> Sample:
    prompt, completion = (existing(values, name) for name in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return PlainText(checked(prompt, "prompt"), checked(completion, "completion"))
    if isinstance(prompt, list) and isinstance(completion, list):
        before, after = read_turns(prompt, "prompt"), read_turns(completion, "completion")
        return Conversation([*before, *after], len(before))
    raise BadRow(
        "`prompt` and `completion` must both be strings or both be lists of messages; they are "
        f"{kind(prompt)} and {kind(completion)}"
    )


def _plain_text(values: dict[str, Any]) -> Sample:
    return PlainText("", text(values, "text"))


def _turns(values: Mapping[str, Any], format_: str) -> Any:
    for name in TURNS[format_]:
        if name in values:
            return values[name]
    return existing(values, TURNS[format_][0])


MESSAGES = RowFormat(TURNS["messages"], (), "`messages` (role, content)", _messages)
SHAREGPT = RowFormat((*TURNS["sharegpt"], "system"), (), "`conversations` (from, value)", _sharegpt)
ALPACA = RowFormat(
    ("instruction", "input", "output", "system", "history"),
    ("instruction", "output"),
    "`instruction` and `output`",
    _alpaca,
)
PROMPT_COMPLETION = RowFormat(
    ("prompt", "completion"),
    ("prompt", "completion"),
    "`prompt` and `completion`",
    _prompt_completion,
)
TEXT = RowFormat(("text",), ("text",), "`text`", _plain_text)
