"""Rewards for answers: what each of the closed set says of a batch of them.

Nothing of a request is run: patterns and schemas are data, and patterns are kept on a leash.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from trainer_core.data import leash
from trainer_core.errors import InvalidSpec
from trainer_core.json_schema import fits, schema_problem
from trainer_core.reward_columns import PREFIX
from trainer_core.spec import GrpoTask
from trainer_core.spec.rewards import (
    ExactMatch,
    JsonSchema,
    Keywords,
    Length,
    RegexMatch,
    Reward,
    RewardModel,
)
from trainer_core.task_rules import further_model_problems

Scores = Callable[..., list[float]]
"""Called with `completions`, `completion_ids` and the columns of prepared rows, by name."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def names_of(rewards: Sequence[Reward]) -> list[str]:
    """A name for each, for its own measure: its type, with a number from the second one on."""
    seen: Counter[str] = Counter()
    names: list[str] = []
    for reward in rewards:
        seen[reward.type] += 1
        names.append(numbered(reward.type, seen[reward.type]))
    return names


def numbered(kind: str, number: int) -> str:
    """The name of the `number`th reward of a type."""
    return kind if number == 1 else f"{kind}_{number}"


def scores_of(reward: Reward) -> Scores:
    """The function of a reward that reads texts alone."""
    found = next(make for kind, make in _SCORES.items() if isinstance(reward, kind))
    return partial(found, reward)


def _exact_match(
    reward: ExactMatch, completions: Sequence[str], **columns: Sequence[str]
) -> list[float]:
    expected = columns[PREFIX + reward.column]
    return [
        float(_same(reward, said, wanted))
        for said, wanted in zip(completions, expected, strict=True)
    ]


def _same(reward: ExactMatch, said: str, wanted: str) -> bool:
    if reward.compare == "last_number":
        number = _last_number(said)
        return number is not None and number == _last_number(wanted)
    said, wanted = said.strip(), wanted.strip()
    return said.casefold() == wanted.casefold() if reward.ignore_case else said == wanted


def _last_number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "")) if found else None
    except InvalidOperation:
        return None


def _regex(reward: RegexMatch, completions: Sequence[str], **_: Any) -> list[float]:
    pattern = re.compile(reward.pattern)
    matches = pattern.search if reward.match == "search" else pattern.fullmatch
    return _held(lambda: [float(matches(said) is not None) for said in completions], "pattern")


def _json_schema(reward: JsonSchema, completions: Sequence[str], **_: Any) -> list[float]:
    return _held(lambda: [float(_is_json(reward, said)) for said in completions], "json_schema")


def _is_json(reward: JsonSchema, said: str) -> bool:
    try:
        value = json.loads(said)
    except (ValueError, RecursionError):
        return False
    return fits(value, reward.json_schema)


def _held(judge: Callable[[], list[float]], field: str) -> list[float]:
    """Patterns can take for ever; raises InvalidSpec then."""
    try:
        with leash.held():
            return judge()
    except leash.TooSlow:
        raise InvalidSpec(
            f"a reward's {field} takes longer than {leash.SECONDS:g} s for one batch of answers: "
            "write it without nested repetitions",
            f"task.rewards.{field}",
        ) from None


def _length(
    reward: Length, completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any
) -> list[float]:
    counts = {
        "tokens": lambda: [len(ids) for ids in completion_ids],
        "words": lambda: [len(said.split()) for said in completions],
        "characters": lambda: [len(said) for said in completions],
    }[reward.unit]()
    return [_within(count, reward.min, reward.max) for count in counts]


def _within(count: int, low: int | None, high: int | None) -> float:
    if low is not None and count < low:
        return count / low
    if high is not None and count > high:
        return max(0.0, 1 - (count - high) / high)
    return 1.0


def _keyword(reward: Keywords, completions: Sequence[str], **columns: Sequence[str]) -> list[float]:
    if reward.column is None:
        wanted = [reward.keywords or []] * len(completions)
    else:
        wanted = [_listed(text) for text in columns[PREFIX + reward.column]]
    return [
        _held_words(reward, said, words) for said, words in zip(completions, wanted, strict=True)
    ]


def _listed(text: str) -> list[str]:
    """The keywords of a column: a list, as JSON, or one word."""
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    return [str(word) for word in value] if isinstance(value, list) else [text]


def _held_words(reward: Keywords, said: str, words: Sequence[str]) -> float:
    if reward.ignore_case:
        said, words = said.casefold(), [word.casefold() for word in words]
    there = sum(word in said for word in words)
    if reward.match == "all":
        return there / len(words) if words else 1.0
    return float((there > 0) == (reward.match == "any"))


_SCORES: dict[type, Callable[..., list[float]]] = {
    ExactMatch: _exact_match,
    RegexMatch: _regex,
    Length: _length,
    JsonSchema: _json_schema,
    Keywords: _keyword,
}


def reward_problems(task: GrpoTask) -> Iterator[tuple[str, str]]:
    """What cannot work about rewards: the field below `task.rewards`, and why."""
    for number, reward in enumerate(task.rewards):
        for field, message in _problems(reward):
            yield f"{number}/{field}", message
        if reward.weight == 0:
            yield f"{number}/weight", "is 0, so that the reward has no effect: take it out"


def _problems(reward: Reward) -> Iterator[tuple[str, str]]:
    check = next((check for kind, check in _CHECKS.items() if isinstance(reward, kind)), None)
    if check is not None:
        yield from check(reward)


def _length_problem(reward: Length) -> Iterator[tuple[str, str]]:
    if reward.min is None and reward.max is None:
        yield "max", "is missing, and so is min: set one of them at least"
    elif reward.min is not None and reward.max is not None and reward.min > reward.max:
        yield "min", f"is {reward.min}, above max, which is {reward.max}: lower it"


def _schema_problem(reward: JsonSchema) -> Iterator[tuple[str, str]]:
    if problem := schema_problem(reward.json_schema):
        yield "json_schema", f"cannot be checked: {problem}"


def _keyword_problem(reward: Keywords) -> Iterator[tuple[str, str]]:
    if (reward.keywords is None) == (reward.column is None):
        yield "keywords", "or column must be set, and not both: leave one of them out"


def _pattern_problem(reward: RegexMatch) -> Iterator[tuple[str, str]]:
    try:
        re.compile(reward.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        yield "pattern", f"is no regular expression: {error}"


def _model_problem(reward: RewardModel) -> Iterator[tuple[str, str]]:
    yield from further_model_problems("model", reward.model)


_CHECKS: dict[type, Callable[[Any], Iterator[tuple[str, str]]]] = {
    RegexMatch: _pattern_problem,
    Length: _length_problem,
    JsonSchema: _schema_problem,
    Keywords: _keyword_problem,
    RewardModel: _model_problem,
}
