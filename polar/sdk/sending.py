"""What a request can carry: JSON of finite numbers, text that is UTF-8, headers of visible ASCII.

What it cannot carry is told by its place, before anything is sent.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from polar.sdk.errors import Unsendable

_DEEPEST = 500  # levels; the writer recurses, and gives up behind them
_Place = tuple[str | int, ...]


def encoded(value: Any) -> bytes:
    """Return a value as JSON; raises Unsendable, which names what JSON has no form for."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Unsendable(_told(value, error)) from None


def segment(text: str, *, safe: str = "") -> str:
    """Return a text as a part of a path; raises Unsendable for half a character."""
    return quote(utf8(text, "the path"), safe=safe)


def utf8(text: str, name: str) -> bytes:
    """Return a text's bytes; raises Unsendable for half a character, as odd file names have it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Unsendable(f"{name} is {text!r}, which is not UTF-8: give other text") from None


def check_head(method: str, query: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Raise Unsendable for a method, a value of the query or a header that HTTP does not take."""
    if not (method.isascii() and method.isalpha()):
        raise Unsendable(f"{method!r} is no method: give GET, POST, PUT, PATCH or DELETE")
    for name, value in query.items():
        utf8(name, "the query")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            utf8(str(each), name)
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            # The value is not repeated: it may be a secret.
            raise Unsendable(f"the header {name} takes visible ASCII characters alone: give others")


def _told(value: Any, error: Exception) -> str:
    for place, each in _walk(value):
        if len(place) > _DEEPEST:
            return f"{_dotted(place)} is nested too deeply"
        if not isinstance(each, (dict, list, tuple)) and (why := _why_not(each)):
            return f"{_dotted(place)} {why}"
    return f"the body is not JSON: {error}"


def _walk(value: Any) -> Iterator[tuple[_Place, Any]]:
    """Yield what is in a value with its place; no recursion, since it may hold itself."""
    waiting: list[tuple[_Place, Any]] = [((), value)]
    while waiting:
        place, each = waiting.pop()
        yield place, each
        if isinstance(each, dict):
            waiting += [((*place, str(name)), member) for name, member in each.items()]
        elif isinstance(each, (list, tuple)):
            waiting += [((*place, index), member) for index, member in enumerate(each)]


def _why_not(value: Any) -> str:
    """Why a single value has no form in JSON; empty: it has one."""
    no_form = "which JSON has no form for: give"
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return f"is {value!r}, which is not UTF-8: give other text"
    except TypeError:
        return f"is a {type(value).__name__}, {no_form} text, a number, a list or a dict"
    except ValueError:
        if isinstance(value, float):
            return f"is {value}, {no_form} a finite number"
        return "has too many digits"
    return ""


def _dotted(place: _Place) -> str:
    if not place:
        return "the body"
    return f"`{'.'.join(map(str, place[:8]))}{'…' if len(place) > 8 else ''}`"
