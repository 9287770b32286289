"""Reading answers as the classes that they are."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import httpx
from pydantic import BaseModel

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def as_(kind: type[M]) -> Callable[[httpx.Response], M]:
    """Return what reads an answer as this class."""
    return lambda answer: kind.model_validate_json(answer.content)


def items_of(
    kind: type[M], items: Callable[[M], Sequence[T]]
) -> Callable[[httpx.Response], Sequence[T]]:
    """Return what reads an answer that is one whole list."""
    return lambda answer: items(kind.model_validate_json(answer.content))
