"""Fields by their dotted names, and those in which documents differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flat(document: Any) -> dict[str, Any]:
    """Return each value of a document under its name: `training.seed`, `data.train.0.path`.

    Empty objects and lists are values themselves.
    """
    return dict(_flat(document, ""))


def _flat(document: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(document, Mapping) and document:
        parts: Sequence[tuple[Any, Any]] = list(document.items())
    elif isinstance(document, list) and document:
        parts = list(enumerate(document))
    else:
        yield name, document
        return
    for key, value in parts:
        yield from _flat(value, f"{name}.{key}" if name else str(key))


def differing(documents: Sequence[Any]) -> list[dict[str, Any]]:
    """Return of each document the fields that are not the same in all; one it lacks is left out."""
    every = [flat(document) for document in documents]
    names = dict.fromkeys(name for fields in every for name in fields)
    wanted = [
        name for name in names if any(_of(fields, name) != _of(every[0], name) for fields in every)
    ]
    return [{name: fields[name] for name in wanted if name in fields} for fields in every]


def _of(fields: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    return name in fields, fields.get(name)
