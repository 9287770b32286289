"""What every encoder of rows does: from samples to prepared rows, and from those to the files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.layout import Layout
from trainer_core.data.rows import BadRow, Place, PreparedRow, Sample
from trainer_core.data.templates import Template
from trainer_core.spec import TrainSpec

DEFAULT_MAX_LENGTH = 1024
Numbered = Sequence[tuple[Place, Sample]]
Outcomes = Iterator[tuple[Place, PreparedRow | BadRow]]


@dataclass(frozen=True)
class EncodingSetup:
    """What an encoder is made from; `template` is None for tasks without chat templates.

    `tokenizer` is None for kinds of rows without text, `processor` for those without images.
    """

    spec: TrainSpec
    tokenizer: Any
    template: Template | None
    processor: Any = None

    def chat_template(self) -> Template:
        """The template, for tasks that have one."""
        if self.template is None:
            raise TypeError(f"task {self.spec.task.type} has no chat template")
        return self.template


class RowEncoder(Protocol):
    """Turns samples into rows of the layout `staged`, and staged rows into those of `final`.

    `max_length` bounds the sequences of final rows; a sample above `row_limit` is treated as
    `data.over_length` says (both are the same unless samples are cut and joined anyway).
    """

    staged: Layout
    final: Layout
    max_length: int
    row_limit: int

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:
        """Encode samples of the source `field` in order; what cannot be used comes as BadRow."""

    def cut(self, row: Any, *, keep_end: bool) -> PreparedRow:
        """The first (or last) `max_length` tokens of a row that is too long."""

    def split(self, row: Any) -> Sequence[PreparedRow]:
        """A row that is too long as several; asked for only where the task allows `split`."""

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The final rows of the staged rows `chosen`: as they are, or packed."""

    def facts(self) -> dict[str, Any]:
        """What was found out about all rows and the run must know, such as the label map."""

    def example(self, row: Any) -> dict[str, Any]:
        """A row as people can read it, with what is learned of it."""


def as_they_are(rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    """The chosen rows in order: the `arrange` of most encoders."""
    return (rows[number] for number in chosen)
