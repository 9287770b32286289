"""Tools and calls of them, in the spellings of OpenAI, ShareGPT and ms-swift, as templates want it.

A call becomes `{"type": "function", "function": {"name", "arguments"}}` with the arguments as an
object, a tool `{"type": "function", "function": {…}}`: what `apply_chat_template` is given too.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainer_core.data.rows import BadRow

_FUNCTION = "function"


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tools of a row (a list of JSON schemas, or JSON of one); None where there are none."""
    tools = _loaded(value)
    if tools in (None, "", [], {}):
        return None
    if isinstance(tools, dict):
        tools = [tools]
    if not isinstance(tools, list):
        raise BadRow("`tools` must be a list of tools, or JSON of one")
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def read_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """The calls of a message: a list, a single one, or JSON of either; raises BadRow."""
    calls = _loaded(value)
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list) or not calls:
        raise BadRow(f"`{where}` must be a call with `name` and `arguments`, or a list of calls")
    return [_call(call, where) for call in calls]


def texts_in(value: Any) -> list[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [t for key, inner in value.items() for t in (str(key), *texts_in(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in texts_in(inner)]
    return []


def _loaded(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _tool(tool: Any, where: str) -> dict[str, Any]:
    tool = _loaded(tool)
    function = tool.get(_FUNCTION, tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow(f"`{where}` must be an object with the `name` of a function")
    return tool if _FUNCTION in tool else {"type": _FUNCTION, _FUNCTION: tool}


def _call(call: Any, where: str) -> dict[str, Any]:
    call = _loaded(call)
    function = call.get(_FUNCTION, call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow(f"`{where}` must name the function that is called in `name`")
    arguments = _loaded(function.get("arguments", function.get("parameters", {})))
    if arguments in (None, ""):
        arguments = {}
    if not isinstance(arguments, dict):
        raise BadRow(f"`{where}` must have an object in `arguments`, or JSON of one")
    made = {"type": _FUNCTION, _FUNCTION: {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **made} if isinstance(call.get("id"), str) else made
