"""JSON that people write, and why a text is none."""

import json
from typing import Any


class NamedTwice(ValueError):
    """A name that an object has twice, of which JSON's readers take one silently."""


def parse_json(text: str | bytes) -> Any:
    """The value in `text`; raises ValueError or RecursionError, see `json_problem`."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NamedTwice(f"'{twice}' is named twice in one object: keep one")
    return found


def json_problem(error: Exception) -> str:
    """The reason in an error of `parse_json`: a ValueError, or a RecursionError."""
    if isinstance(error, NamedTwice):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        return f"{error.msg.removesuffix(' at')} at {line}character {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {error.encoding.upper()}: save it as UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a number in it has too many digits"
