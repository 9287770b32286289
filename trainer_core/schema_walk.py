"""Walking pydantic models by an error's location."""

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


@dataclass(frozen=True)
class Spot:
    """A place in a document: its path without the tags of unions.

    `holder` is the model that has (or lacks) the last field, `models` those that may stand there.
    """

    path: tuple[str | int, ...]
    holder: type[BaseModel] | None
    models: tuple[type[BaseModel], ...] = ()


def walk(
    location: Sequence[str | int], model: type[BaseModel] | None, *, tagged: bool = True
) -> Spot:
    """Follow a location through the models; unknown parts are taken as they are.

    `tagged`: whether the location names the members of unions, as pydantic's do.
    """
    path: list[str | int] = []
    here: list[Any] = [] if model is None else [model]
    holder = model
    for part in location:
        if tagged and len(here) > 1:  # a union's location names the member next: that is no key
            here = [member for member in here if _is_tagged(member, str(part))] or here
            here = here[:1]
            continue
        if part == "[key]":
            continue
        holder = here[0] if here and _is_model(here[0]) else None
        path.append(part)
        here = [
            inner for member in here[: 1 if tagged else None] for inner in _inside(member, part)
        ]
    return Spot(tuple(path), holder, tuple(m for m in here if _is_model(m)))


def fields_of(model: type[BaseModel] | None) -> list[str]:
    """The names that a model's document may have."""
    return [] if model is None else [f.alias or n for n, f in model.model_fields.items()]


def find_field(model: type[BaseModel], name: str) -> tuple[str, ...] | None:
    """Where in nested models (lists left out) a field of that name stands; the shallowest."""
    level: list[tuple[tuple[str, ...], type[BaseModel]]] = [((), model)]
    while level:
        for path, holder in level:
            if name in holder.model_fields:
                return (*path, name)
        level = [
            ((*path, field), member)
            for path, holder in level
            for field, info in holder.model_fields.items()
            for member in _members(info.annotation)
            if _is_model(member)
        ]
    return None


def nested_fields(model: type[BaseModel]) -> list[str]:
    """The names of all fields of a model and those nested in it."""
    names, pending = [], [model]
    while pending:
        holder = pending.pop()
        names += list(holder.model_fields)
        for info in holder.model_fields.values():
            pending += [m for m in _members(info.annotation) if _is_model(m)]
    return names


def _inside(annotation: Any, part: str | int) -> list[Any]:
    if _is_model(annotation):
        info = annotation.model_fields.get(part)
        return [] if info is None else _members(info.annotation)
    arguments = typing.get_args(annotation)
    return _members(arguments[-1]) if arguments else []


def _members(annotation: Any) -> list[Any]:
    """The members of a union, without None; anything else is its own only member."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        found = [m for argument in typing.get_args(annotation) for m in _members(argument)]
        return [member for member in found if member is not type(None)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _is_tagged(member: Any, tag: str) -> bool:
    if _is_model(member):
        discriminators = (f.annotation for f in member.model_fields.values())
        literals = [v for a in discriminators for v in _literal(a)]
        return bool(member.__name__ == tag or tag in literals)
    name = getattr(typing.get_origin(member) or member, "__name__", str(member)).lower()
    return tag.partition("[")[0].lower().endswith(name)


def _literal(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
