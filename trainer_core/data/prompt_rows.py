"""Rows of prompts: their tokens, and the texts that rewards compare answers with, for `grpo`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_core.data.arrow import ArrowRows
from trainer_core.data.encode import Encoder
from trainer_core.data.layout import ColumnKind, Layout
from trainer_core.data.prompt_formats import as_text
from trainer_core.data.row_encoder import EncodingSetup, Numbered, Outcomes, as_they_are
from trainer_core.data.rows import BadRow, Conversation, Place, PlainText, Prompt
from trainer_core.reward_columns import ASKED, PREFIX, columns_of
from trainer_core.spec import GrpoTask
from trainer_core.task_facts import block_of

_DEFAULT_LENGTH = 512


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt as tokens, and the row's columns that rewards read."""

    place: Place
    prompt: list[int]
    given: Mapping[str, str]

    @property
    def values(self) -> Mapping[str, Any]:
        """All columns."""
        return {"prompt": self.prompt, **self.given}

    @property
    def longest(self) -> int:
        """Its tokens."""
        return len(self.prompt)

    @property
    def trained(self) -> int:
        """One prompt: answers are made while training."""
        return 1

    @property
    def content(self) -> Sequence[int]:
        """Its tokens."""
        return self.prompt

    @property
    def answer(self) -> Sequence[int]:
        """What rewards compare with; the prompt itself where there is nothing."""
        told = [value for name, value in sorted(self.given.items()) if name != PREFIX + ASKED]
        return list("\0".join(told).encode()) or self.prompt


class PromptRows:
    """One row a prompt, ending where the model is to answer."""

    def __init__(self, setup: EncodingSetup) -> None:
        task = block_of(setup.spec, GrpoTask)
        self._tokenizer = setup.tokenizer
        self._encoder = Encoder(setup.tokenizer, setup.chat_template())
        self._columns, self._keeps_messages = columns_of(task.rewards)
        names = [*self._columns, *([ASKED] if self._keeps_messages else [])]
        kinds: dict[str, ColumnKind] = {PREFIX + name: "text" for name in names}
        self.staged = self.final = Layout({"prompt": "ints", **kinds}, ("prompt",))
        self.max_length = self.row_limit = task.prompt_length or _DEFAULT_LENGTH

    def encode(self, samples: Numbered, format_: str, field: str) -> Outcomes:  # noqa: ARG002 - the protocol's
        """Tokens of each prompt; a row that lacks what a reward reads cannot be used."""
        prompts = [sample for _, sample in samples if isinstance(sample, Prompt)]
        tokens = self._encoder.prompts([prompt.asked for prompt in prompts])
        for (place, _), prompt, ids in zip(samples, prompts, tokens, strict=True):
            try:
                yield place, ids if isinstance(ids, BadRow) else self._row(place, prompt, ids)
            except BadRow as problem:
                yield place, problem

    def _row(self, place: Place, prompt: Prompt, ids: list[int]) -> PromptRow:
        given = {}
        for name in self._columns:
            if name not in prompt.given:
                raise BadRow(f"the column `{name}` is missing, but a reward reads it")
            given[PREFIX + name] = as_text(prompt.given[name], name)
        if self._keeps_messages:
            given[PREFIX + ASKED] = json.dumps(_asked(prompt.asked), ensure_ascii=False)
        return PromptRow(place, ids, given)

    def cut(self, row: PromptRow, *, keep_end: bool) -> PromptRow:
        """Never asked for: half a question has no right answer."""
        raise NotImplementedError

    def split(self, row: PromptRow) -> Sequence[PromptRow]:
        """Never asked for either."""
        raise NotImplementedError

    def arrange(self, rows: ArrowRows, chosen: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Whole rows."""
        return as_they_are(rows, chosen)

    def facts(self) -> dict[str, Any]:
        """Nothing beside the rows."""
        return {}

    def example(self, row: PromptRow) -> dict[str, Any]:
        """The prompt as text, and what rewards know of it."""
        told = {name.removeprefix(PREFIX): value for name, value in row.given.items()}
        return {"text": self._tokenizer.decode(row.prompt), "trained": [], "given": told}


def _asked(asked: Conversation | PlainText) -> Any:
    return asked.prompt if isinstance(asked, PlainText) else asked.messages
