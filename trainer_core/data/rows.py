"""The things that flow through preparation: rows with their place, and what they become."""

from dataclasses import dataclass
from typing import Any

Message = dict[str, str]


class BadRow(Exception):
    """One row cannot be used; the message says why, the pipeline adds the row's place."""

    def __init__(self, message: str, reason: str = "bad_row") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: the spec's field, the file or data set, and the line or row from 1."""

    field: str
    name: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.name} {self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source; `problem` is set instead of `values` where it could not be read."""

    place: Place
    values: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the chat template; `prompt_messages` counts those that only ask."""

    messages: list[Message]
    prompt_messages: int | None = None


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text without a template: `prompt` carries no loss unless everything does."""

    prompt: str
    completion: str


Sample = Conversation | PlainText


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sample as tokens; `labels` is aligned with `input_ids`, −100 means no loss."""

    place: Place
    input_ids: list[int]
    labels: list[int]

    @property
    def trained(self) -> int:
        """Tokens that carry loss; the first one never does, because nothing predicts it."""
        return len(self.labels) - self.labels.count(-100)
