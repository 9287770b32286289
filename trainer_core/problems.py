"""What is wrong with a document, field by field: a JSON pointer, a sentence and the value.

pydantic's errors say where in its own terms (with the members of unions in between); here they
are told in the user's terms, with the nearest known name of an unknown field and the way out.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from trainer_core.schema_walk import Spot, fields_of, find_field, nested_fields, walk
from trainer_core.spec.base import HOLDS_NUL

_SECRETIVE = ("token", "secret", "password", "key", "credential")
_SHOWN = 80
_AT_ROOT = ("list_type", "model_type", "model_attributes_type", "dict_type", "literal_error")


class Problem(BaseModel):
    """One wrong field: `value` is a short representation, None where it could be a secret."""

    pointer: str
    message: str
    value: str | None = None


MOST = 50
"""Errors that are explained: the nearest name of each is looked for among all fields."""


def explain(
    error: ValidationError,
    loc_prefix: Sequence[str | int] = (),
    model: type[BaseModel] | None = None,
) -> list[Problem]:
    """One Problem for each wrong field, in the order of the document.

    Of many wrong fields the first `MOST` are explained, and one Problem says how many more are.
    `loc_prefix` is put before every pointer. `model` is what was validated; left out, it is
    found by the error's title.
    """
    found = error.errors(include_url=False)
    return explain_errors(found, model or _titled(error.title), loc_prefix)


def explain_errors(
    errors: Iterable[Mapping[str, Any]],
    model: type[BaseModel] | None,
    loc_prefix: Sequence[str | int] = (),
) -> list[Problem]:
    """As `explain`, for pydantic's error dicts whose `loc` starts at a `model`."""
    errors = list(errors)
    groups: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    spots: dict[tuple[str | int, ...], Spot] = {}
    for error in map(_as_of_a_field, errors[:MOST]):
        spot = walk(error["loc"], model, tagged=error["type"] != HOLDS_NUL)
        groups.setdefault(spot.path, []).append(error)
        spots[spot.path] = spot
    problems = []
    for path, group in groups.items():
        if _is_other_branch(path, group, groups):
            continue
        message, value = _told(group, spots[path], model)
        pointer = to_pointer((*loc_prefix, *path))
        problems.append(Problem(pointer=pointer, message=message, value=value))
    if len(errors) > MOST:
        message = f"and {len(errors) - MOST} more fields are wrong"
        problems.append(Problem(pointer=to_pointer(loc_prefix), message=message))
    return problems


def _as_of_a_field(error: Mapping[str, Any]) -> Mapping[str, Any]:
    """An error about the tag of a union as one of the field that holds the tag."""
    context = error.get("ctx") or {}
    if error["type"] not in ("union_tag_invalid", "union_tag_not_found"):
        return error
    name = str(context["discriminator"]).strip("'")
    place = {"loc": (*error["loc"], "", name)}
    if error["type"] == "union_tag_not_found":
        return {**error, **place, "type": "missing"}
    expected = " or ".join(str(context["expected_tags"]).split(", "))
    told = {"type": "literal_error", "ctx": {"expected": expected}}
    return {**error, **place, **told, "input": context["tag"]}


def to_pointer(path: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def to_dotted(path: Iterable[str | int]) -> str:
    """The path as people write it: `data.train[0].path`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, if one is like it at all."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def _titled(title: str) -> type[BaseModel] | None:
    pending: list[type[BaseModel]] = [BaseModel]
    while pending:
        model = pending.pop()
        if model.__name__ == title:
            return model
        pending += model.__subclasses__()
    return None


def _is_other_branch(
    path: tuple[str | int, ...],
    group: Sequence[Mapping[str, Any]],
    groups: Iterable[tuple[str | int, ...]],
) -> bool:
    """Whether errors say only that a value is not of a union's other member."""
    deeper = any(len(other) > len(path) and other[: len(path)] == path for other in groups)
    return deeper and all(error["type"] in _AT_ROOT for error in group)


def _told(
    group: Sequence[Mapping[str, Any]], spot: Spot, model: type[BaseModel] | None
) -> tuple[str, str | None]:
    kind, name = group[0]["type"], to_dotted(spot.path)
    if kind == "missing":
        return f"`{name}` is missing: add it", None
    if kind == "extra_forbidden":
        return _unknown(spot, model), None
    value = None if _is_secretive(spot.path) else _shown(group[0]["input"])
    if kind in ("value_error", HOLDS_NUL):
        reason = str(group[0]["msg"]).removeprefix("Value error, ")
        return (f"`{name}`: {reason}" if name else reason), value
    expected = list(dict.fromkeys(_expected(error, spot) for error in group))
    given = f"is {value}" if value is not None else "has a value that cannot be used"
    return f"`{name or 'the document'}` {given}, but it must be {' or '.join(expected)}", value


def _unknown(spot: Spot, model: type[BaseModel] | None) -> str:
    name = str(spot.path[-1])
    where = f"in `{to_dotted(spot.path[:-1])}`" if len(spot.path) > 1 else "at the top"
    known = fields_of(spot.holder)
    text = f"there is no field `{name}` {where}"
    if close := nearest(name, known):
        return f"{text}: did you mean `{close}`?"
    if model is not None and (elsewhere := find_field(model, name)) not in (None, spot.path):
        return f"{text}: did you mean `{to_dotted(elsewhere or ())}`?"
    if (
        model is not None
        and find_field(model, name) is None
        and (close := nearest(name, nested_fields(model)))
    ):
        return f"{text}: did you mean `{to_dotted(find_field(model, close) or (close,))}`?"
    return f"{text}: take it out; known are {', '.join(f'`{n}`' for n in sorted(known))}"


def _is_secretive(path: Iterable[str | int]) -> bool:
    return any(word in str(part).lower() for part in path for word in _SECRETIVE)


def _shown(value: Any) -> str | None:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    names = {None: "null", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _expected(error: Mapping[str, Any], spot: Spot) -> str:
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind in _WITH_CONTEXT:
        return _WITH_CONTEXT[kind](context)
    if kind in ("literal_error", "enum"):
        return _choices(str(context["expected"]), error["input"])
    if kind in ("model_type", "model_attributes_type"):
        return _object(spot, str(context.get("class_name", "")))
    return str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")


def _choices(expected: str, value: Any) -> str:
    close = nearest(str(value), [part for part in expected.split("'") if part.isidentifier()])
    return f"{expected} (did you mean '{close}'?)" if close else expected


def _object(spot: Spot, class_name: str) -> str:
    members = [m for m in spot.models if m.__name__ == class_name] or spot.models
    fields = [[n for n, f in m.model_fields.items() if f.is_required()] for m in members]
    required = [name for name in fields[0] if all(name in f for f in fields)] if fields else []
    names = " and ".join(f"`{name}`" for name in required)
    return f"an object with {names}" if names else "an object"


def _number(value: float) -> str:
    """A bound in all its digits: 1048576 and not 1.04858e+06."""
    return str(value) if isinstance(value, int) else f"{value:g}"


_SIMPLE = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
}
_WITH_CONTEXT: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"greater than {_number(c['gt'])}",
    "greater_than_equal": lambda c: f"at least {_number(c['ge'])}",
    "less_than": lambda c: f"less than {_number(c['lt'])}",
    "less_than_equal": lambda c: f"at most {_number(c['le'])}",
    "string_too_short": lambda c: f"a text of {c['min_length']} characters or more",
    "string_too_long": lambda c: f"at most {c['max_length']} characters long",
    "string_pattern_mismatch": lambda c: f"a name of the form {c['pattern']}",
    "too_short": lambda c: f"a list of {c['min_length']} items or more",
    "too_long": lambda c: f"at most {c['max_length']} items long",
    "json_invalid": lambda c: f"valid JSON ({c['error']})",
}
