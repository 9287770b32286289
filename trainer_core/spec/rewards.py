"""Rewards: the closed set of what may judge an answer. Each gives a number of 0 to 1, but for a
reward model, whose own number counts."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainer_core.spec.base import Strict
from trainer_core.spec.model import ModelRef

Weight = Annotated[float, Field(ge=-1_000_000, le=1_000_000)]
Column = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Keyword = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class ExactMatch(Strict):
    """1 where the answer is what the row's column says, else 0."""

    type: Literal["exact_match"]
    weight: Weight = 1.0
    column: Column = Field("answer", description="The column with the expected answer.")
    compare: Literal["text", "last_number"] = Field(
        "text", description="The whole text without outer blanks, or the last number of both."
    )
    ignore_case: bool = False


class RegexMatch(Strict):
    """1 where a pattern is found, else 0."""

    type: Literal["regex"]
    weight: Weight = 1.0
    pattern: str = Field(min_length=1, max_length=1024, description="As Python's `re` reads it.")
    match: Literal["search", "fullmatch"] = "search"


class Length(Strict):
    """1 inside of the bounds; outside it falls with the distance, down to 0."""

    type: Literal["length"]
    weight: Weight = 1.0
    unit: Literal["tokens", "words", "characters"] = "tokens"
    min: int | None = Field(None, ge=1, le=1_000_000)
    max: int | None = Field(None, ge=1, le=1_000_000)


class JsonSchema(Strict):
    """1 where the answer is JSON of a schema, else 0. Without a schema any JSON will do."""

    type: Literal["json_schema"]
    weight: Weight = 1.0
    json_schema: dict[str, Any] = Field(default_factory=dict, max_length=100)


class Keywords(Strict):
    """How many of the keywords an answer holds."""

    type: Literal["keyword"]
    weight: Weight = 1.0
    keywords: list[Keyword] | None = Field(None, min_length=1, max_length=1000)
    column: Column | None = Field(
        None, description="Instead of `keywords`: the column with them, one or a list."
    )
    match: Literal["all", "any", "none"] = Field(
        "all", description="`all`: their share; `any`: 1 with one of them; `none`: 1 with none."
    )
    ignore_case: bool = False


class RewardModel(Strict):
    """What a sequence classifier with one output says of prompt and answer, as it is."""

    type: Literal["reward_model"]
    weight: Weight = 1.0
    model: ModelRef


Reward = Annotated[
    ExactMatch | RegexMatch | Length | JsonSchema | Keywords | RewardModel,
    Field(discriminator="type"),
]
REWARD_TYPES = ("exact_match", "regex", "length", "json_schema", "keyword", "reward_model")
