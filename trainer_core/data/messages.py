"""Lists of messages, in OpenAI's and in ShareGPT's spelling, and checks of what rows hold."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer_core.data.rows import BadRow, Message
from trainer_core.data.tool_calls import read_calls

MESSAGE_COLUMNS = ("messages", "conversations")
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "function_call": "assistant",
    "tool_call": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "tool": "tool",
}
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "tool_call": "assistant",
    "tool_response": "tool",
}
_CALLS = ("function_call", "tool_call")
"""Speakers whose content is a call as JSON."""
_OPENAI = ("role", "content")
_PASSED_ON = ("name", "tool_call_id", "reasoning_content", "thinking")
"""Further texts of a message that templates may write."""
_FLAGS = ("loss", "train", "weight")
"""Whether a message carries loss, as ms-swift, axolotl and OpenAI spell it."""
_READ = {"role", "content", "from", "value", "tool_calls", "function_call", *_PASSED_ON, *_FLAGS}
_SHOWN = 60


def ignored_keys(values: Mapping[str, Any], format_: str) -> set[str]:
    """Keys of a row's messages that nothing reads; columns beside the format's are usual."""
    if format_ not in ("messages", "sharegpt"):
        return set()
    turns = parsed(next((values[c] for c in MESSAGE_COLUMNS if c in values), None))
    keys = (
        key
        for turn in (turns if isinstance(turns, list) else [])
        for key, value in (turn.items() if isinstance(turn, dict) else ())
        if value is not None
    )
    return set(keys) - _READ


def read_turns(turns: Any, column: str) -> list[Message]:
    """The messages of a column, in our spelling; raises BadRow for anything else."""
    messages, silent = read_conversation(turns, column)
    if silent:
        raise BadRow(
            f"`{column}[{min(silent)}]` says that it carries no loss, which this format does not "
            f"know: take {listed(_FLAGS)} out of it"
        )
    return messages


def read_conversation(turns: Any, column: str) -> tuple[list[Message], frozenset[int]]:
    """The messages of a column, and indices of answers that the row takes out of the loss.

    Calls of tools that follow each other without anything between them are one message.
    """
    turns = parsed(turns)
    if not isinstance(turns, list):
        raise BadRow(f"`{column}` must be a list of messages, not {kind(turns)}")
    if not turns:
        raise BadRow(f"`{column}` is an empty list: it must hold messages")
    messages: list[Message] = []
    silent: set[int] = set()
    for number, turn in enumerate(turns):
        where = f"{column}[{number}]"
        made, bare_call = _turn(turn, where)
        if bare_call and messages and messages[-1].get("tool_calls"):
            messages[-1]["tool_calls"] += made["tool_calls"]
        else:
            messages.append(made)
        if not _carries_loss(turn, made["role"], where):
            silent.add(len(messages) - 1)
    return messages, frozenset(silent)


def _turn(turn: Any, where: str) -> tuple[Message, bool]:
    """A message, and whether it is nothing but a call in ShareGPT's or ms-swift's spelling."""
    if not isinstance(turn, dict):
        raise BadRow(f"`{where}` must be an object with `role` and `content`, not {kind(turn)}")
    role_key, content_key = ("from", "value") if turn.get("from") is not None else _OPENAI
    if turn.get(role_key) is None:
        raise BadRow(f"`{where}` has no `role` (or `from`)")
    role = _role(turn[role_key], role_key, where)
    if turn[role_key] in _CALLS:
        calls = read_calls(turn.get(content_key), f"{where}.{content_key}")
        return {"role": role, "content": "", "tool_calls": calls}, True
    further = {
        name: checked(turn[name], f"{where}.{name}")
        for name in _PASSED_ON
        if turn.get(name) is not None
    }
    calls = _calls(turn, role, where)
    content = turn.get(content_key)
    made = message(role, "" if calls and content is None else content, f"{where}.{content_key}")
    return made | further | ({"tool_calls": calls} if calls else {}), False


def _calls(turn: dict[str, Any], role: str, where: str) -> list[dict[str, Any]]:
    for key in ("tool_calls", "function_call"):
        if turn.get(key) not in (None, [], {}, ""):
            if role != "assistant":
                raise BadRow(f"`{where}.{key}` is set, but only the assistant calls tools")
            return read_calls(turn[key], f"{where}.{key}")
    return []


def _carries_loss(turn: dict[str, Any], role: str, where: str) -> bool:
    """What a message says of itself; an answer carries loss unless it says no."""
    said = [(key, turn[key]) for key in _FLAGS if turn.get(key) is not None]
    for key, value in said:
        if value not in (True, False):  # 1 and 0 too
            raise BadRow(f"`{where}.{key}` must be true or false (1 or 0)")
        if value and role != "assistant":
            raise BadRow(f"`{where}.{key}` is true, but only the assistant's messages are learned")
    return role != "assistant" or all(bool(value) for _, value in said)


def _role(given: Any, key: str, where: str) -> str:
    """The role that a turn's speaker has; it may be anything that JSON can hold."""
    known = _SPEAKERS if key == "from" else _ROLES
    role = known.get(given) if isinstance(given, str) else None
    if role is None:
        shown = repr(given)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        raise BadRow(
            f"`{where}.{key}` is {shown}, which this task does not know: use one of {listed(known)}"
        )
    return role


def message(role: str, content: Any, where: str) -> Message:
    """A message whose content is checked; `where` names it in errors."""
    return {"role": role, "content": checked(content, where)}


def checked(content: Any, where: str) -> str:
    """The content as it is; raises BadRow unless it is a string of whole characters."""
    if not isinstance(content, str):
        raise BadRow(f"`{where}` must be a string, not {kind(content)}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise BadRow(f"`{where}` holds half a character (a lone surrogate)") from None
    return content


def parsed(value: Any) -> Any:
    """The value, or the list that a string holds as JSON: CSV has strings only."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):  # also nested too deeply: then it is a text
            return value
    return value


def kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    names = {str: "a string", list: "a list", dict: "an object", bool: "a boolean"}
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else "something else"
    )


def nearest(name: str, known: Sequence[str], wording: str = "is '{}' meant?") -> str:
    """A hint at the most similar known name, in brackets; empty where none is similar."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" ({wording.format(close[0])})" if close else ""


def listed(names: Iterable[str]) -> str:
    """The names in quotes, the first 20 of them."""
    names = [name.encode("utf-8", "backslashreplace").decode() for name in names]
    shown = ", ".join(f"'{name}'" for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "nothing"
