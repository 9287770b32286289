"""Lists of messages, in OpenAI's and in ShareGPT's spelling, and checks of what rows hold."""

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer_core.data.rows import BadRow, Message

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
}
_OPENAI = ("role", "content")
_READ = {"role", "content", "from", "value"}
_ROLES = ("system", "developer", "user", "assistant")
_SHOWN = 60
_MEANINGFUL = ("tool_calls", "function_call", "tool_call_id", "weight", "loss", "train")


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
    turns = parsed(turns)
    if not isinstance(turns, list) or not turns:
        raise BadRow(f"`{column}` must be a list of messages that is not empty, not {kind(turns)}")
    return [_turn(turn, f"{column}[{i}]") for i, turn in enumerate(turns)]


def _turn(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict):
        raise BadRow(f"`{where}` must be an object with `role` and `content`, not {kind(turn)}")
    role_key, content_key = ("from", "value") if turn.get("from") is not None else _OPENAI
    for key in _MEANINGFUL:
        if turn.get(key) not in (None, [], {}):
            raise BadRow(f"`{where}.{key}` is set, but this task cannot learn from it: take it out")
    if turn.get(role_key) is None:
        raise BadRow(f"`{where}` has no `role` (or `from`)")
    role = _role(turn[role_key], role_key, where)
    return message(role, turn.get(content_key), f"{where}.{content_key}")


def _role(given: Any, key: str, where: str) -> str:
    """The role that a turn's speaker has; it may be anything that JSON can hold."""
    known = _SPEAKERS if key == "from" else {role: role for role in _ROLES}
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
