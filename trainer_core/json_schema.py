"""JSON Schema, as far as it can be checked without fetching or running anything."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = {"title", "description", "default", "examples", "$schema", "$comment"}
_SCHEMAS = ("items", "additionalProperties", "not")
_LISTS = ("allOf", "anyOf", "oneOf")


def schema_problem(schema: Any, where: str = "the schema") -> str | None:
    """Why a schema cannot be checked; None where it can."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"{where} must be an object or a boolean"
    unknown = next((name for name in schema if name not in _CHECKS and name not in _NOTES), None)
    if unknown is not None:
        return f"{where} uses '{unknown}', which is not checked here: use {', '.join(_CHECKS)}"
    if wrong := _wrong_value(schema):
        return f"{where}: {wrong}"
    for name, inner in _inner(schema):
        if problem := schema_problem(inner, f"{where}.{name}"):
            return problem
    return None


def _wrong_value(schema: Mapping[str, Any]) -> str | None:
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind not in _TYPES:
            return f"'{kind}' is no type"
    for name in ("required", "enum", *_LISTS):
        if not isinstance(schema.get(name, []), list):
            return f"'{name}' must be a list"
    if not isinstance(schema.get("properties", {}), dict):
        return "'properties' must be an object"
    try:
        re.compile(schema.get("pattern", ""))
    except (re.error, TypeError) as error:
        return f"'pattern' is no regular expression: {error}"
    return None


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from schema.get("properties", {}).items()
    for name in _SCHEMAS:
        if name in schema:
            yield name, schema[name]
    for name in _LISTS:
        for number, inner in enumerate(schema.get(name, [])):
            yield f"{name}[{number}]", inner


def fits(value: Any, schema: Any) -> bool:
    """Whether a JSON value is what a schema (without `schema_problem`) asks for."""
    if isinstance(schema, bool):
        return schema
    return all(
        _CHECKS[name](value, wanted, schema) for name, wanted in schema.items() if name in _CHECKS
    )


def _is_of_type(value: Any, wanted: Any, _: Any) -> bool:
    kinds = [wanted] if isinstance(wanted, str) else wanted
    return any(_is_a(value, kind) for kind in kinds)


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _properties(value: Any, wanted: Any, _: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return all(fits(value[name], inner) for name, inner in wanted.items() if name in value)


def _additional(value: Any, wanted: Any, schema: Any) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema.get("properties", {})
    return all(fits(inner, wanted) for name, inner in value.items() if name not in known)


def _bound(holds: Callable[[float, float], bool]) -> Callable[[Any, Any, Any], bool]:
    def check(value: Any, wanted: Any, _: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return not is_number or holds(value, wanted)

    return check


def _size(
    kind: type[str | list[Any]], holds: Callable[[int, int], bool]
) -> Callable[[Any, Any, Any], bool]:
    def check(value: Any, wanted: Any, _: Any) -> bool:
        return not isinstance(value, kind) or holds(len(value), wanted)

    return check


_CHECKS: dict[str, Callable[[Any, Any, Any], bool]] = {
    "type": _is_of_type,
    "enum": lambda value, wanted, _: value in wanted,
    "const": lambda value, wanted, _: value == wanted,
    "properties": _properties,
    "required": lambda value, wanted, _: not isinstance(value, dict) or set(wanted) <= set(value),
    "additionalProperties": _additional,
    "items": lambda value, wanted, _: (
        not isinstance(value, list) or all(fits(inner, wanted) for inner in value)
    ),
    "minItems": _size(list, lambda size, bound: size >= bound),
    "maxItems": _size(list, lambda size, bound: size <= bound),
    "minLength": _size(str, lambda size, bound: size >= bound),
    "maxLength": _size(str, lambda size, bound: size <= bound),
    "pattern": lambda value, wanted, _: (
        not isinstance(value, str) or re.search(wanted, value) is not None
    ),
    "minimum": _bound(lambda value, bound: value >= bound),
    "maximum": _bound(lambda value, bound: value <= bound),
    "exclusiveMinimum": _bound(lambda value, bound: value > bound),
    "exclusiveMaximum": _bound(lambda value, bound: value < bound),
    "allOf": lambda value, wanted, _: all(fits(value, inner) for inner in wanted),
    "anyOf": lambda value, wanted, _: any(fits(value, inner) for inner in wanted),
    "oneOf": lambda value, wanted, _: sum(fits(value, inner) for inner in wanted) == 1,
    "not": lambda value, wanted, _: not fits(value, wanted),
}
