"""The things that flow through preparation: rows with their place, and what they become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trainer_core.data.trees import Beside

Message = dict[str, Any]
"""`role` and `content` are strings; what else there is (`tool_calls`, `name`, …) is the template's.
"""


class BadRow(Exception):
    """One row cannot be used; the message says why, the pipeline adds the row's place."""

    def __init__(self, message: str, reason: str = "bad_row") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: the spec's field, the file or data set, and the line or row from 1.

    `beside` are the files that the row may name; None where there are none.
    """

    field: str
    name: str
    number: int
    unit: str = "line"
    beside: "Beside | None" = dataclass_field(default=None, compare=False, repr=False)

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
    """Messages for the chat template; `prompt_messages` counts those that only ask.

    `given` are further variables of the template, such as `tools`; `silent` are indices of answers
    that the row itself takes out of the loss.
    """

    messages: list[Message]
    prompt_messages: int | None = None
    given: Mapping[str, Any] = dataclass_field(default_factory=dict)
    silent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text without a template: `prompt` carries no loss unless everything does."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of one text without a template, each with whether it carries loss."""

    pieces: Sequence[tuple[str, bool]]


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, and what the row says is its label."""

    text: str
    pair: str | None
    label: Any


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """An image as the row gives it (bytes, or where it is), and what the row says is its label."""

    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class Pictured:
    """A conversation with places for images in its contents (`parts.MARK`), and the images."""

    conversation: Conversation
    images: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be answered, and the row's other columns."""

    asked: Conversation | PlainText
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt, the first better than the second."""

    chosen: Conversation | PlainText
    rejected: Conversation | PlainText


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts that belong together in the order of their names; `label` is a class, numbers, or None
    for texts whose belonging together is all that there is to learn."""

    names: tuple[str, ...]
    texts: tuple[str, ...]
    label: str | int | bool | list[float] | None


@dataclass(frozen=True, slots=True)
class Judged:
    """An answer to a prompt, and whether it is desirable."""

    answered: Conversation | PlainText
    desirable: bool


Sample = (
    Conversation
    | PlainText
    | Segments
    | LabelledText
    | LabelledImage
    | Pictured
    | Preference
    | Prompt
    | Texts
    | Judged
)


def spoken(sample: Sample) -> PlainText:
    """The sample as the plain text that it is: no other kind reaches those who ask."""
    if not isinstance(sample, PlainText):
        raise TypeError(f"a text expected, not {type(sample).__name__}")
    return sample


class PreparedRow(Protocol):
    """One sample ready to be written: its values by column, and what can be said about them."""

    @property
    def place(self) -> Place:
        """Where it stood in its source."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The columns of the staged layout."""

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence."""

    @property
    def trained(self) -> int:
        """How many tokens or labels carry loss; a row with none is not used."""

    @property
    def content(self) -> Sequence[int]:
        """All of it as numbers: two rows that share it repeat each other."""

    @property
    def answer(self) -> Sequence[int]:
        """What is learned, as numbers."""


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

    @property
    def values(self) -> Mapping[str, Any]:
        """Both columns."""
        return {"input_ids": self.input_ids, "labels": self.labels}

    @property
    def longest(self) -> int:
        """Its tokens."""
        return len(self.input_ids)

    @property
    def content(self) -> Sequence[int]:
        """Its tokens."""
        return self.input_ids

    @property
    def answer(self) -> Sequence[int]:
        """The tokens that carry loss."""
        return [label for label in self.labels if label != -100]
