"""Why a text is not JSON, for people."""

import json


def json_problem(error: Exception) -> str:
    """The reason in an error of `json.loads`: a ValueError, or a RecursionError."""
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"{error.msg.removesuffix(' at')} at {line}character {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {error.encoding.upper()}: save it as UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a number in it has too many digits"
