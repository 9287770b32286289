"""Explains a pydantic ValidationError: JSON pointers, and the nearest name of an unknown field."""

import difflib
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from app.errors import FieldProblem


def explain_body(error: ValidationError, model: type[BaseModel]) -> list[FieldProblem]:
    """Return one problem for each wrong field of a body that should have been a `model`."""
    return [_explain(dict(e), model) for e in error.errors(include_url=False)]


def _explain(error: dict[str, Any], model: type[BaseModel]) -> FieldProblem:
    parts, holders = _walk(error["loc"], model)
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = [name for holder in holders for name in holder.model_fields]
        close = difflib.get_close_matches(parts[-1], known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(sorted(known))}"
        message = f"there is no field {parts[-1]} here; {hint}"
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
    value = None if error["type"] == "missing" else repr(error.get("input"))[:100]
    return FieldProblem(pointer=pointer, message=message, value=value)


def _walk(
    location: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[list[str], list[type[BaseModel]]]:
    """Split a location into real keys and the models that hold the last one.

    Tags of unions stand in locations too; they are not keys and are left out.
    """
    parts: list[str] = []
    here: list[Any] = [model]
    holders: list[type[BaseModel]] = [model]
    for position, part in enumerate(location):
        last = position == len(location) - 1
        models = [m for m in here if isinstance(m, type) and issubclass(m, BaseModel)]
        inner = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        if models and (inner or last):
            holders = models
            here = [leaf for annotation in inner for leaf in _leaves(annotation)]
            parts.append(str(part))
        elif (isinstance(part, int) or last or not models) and not _is_tag(part, here):
            parts.append(str(part))
    return parts, holders


def _is_tag(part: int | str, here: list[Any]) -> bool:
    return isinstance(part, str) and ("[" in part or any(_name(h) == part for h in here))


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))


def _leaves(annotation: Any) -> list[Any]:
    """Return the models and scalars that an annotation is made of."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated, list, tuple, dict):
        arguments = typing.get_args(annotation)
        inner = arguments[:1] if origin is typing.Annotated else arguments
        return [leaf for argument in inner for leaf in _leaves(argument)]
    return [annotation]
