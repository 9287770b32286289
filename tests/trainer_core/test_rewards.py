"""Rewards: what each of the closed set says, and what is refused before anything runs."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from trainer_core.capabilities import check
from trainer_core.data import leash
from trainer_core.errors import InvalidSpec
from trainer_core.json_schema import fits, schema_problem
from trainer_core.rewards import names_of, scores_of
from trainer_core.spec import TrainSpec
from trainer_core.spec.rewards import Reward

READ: TypeAdapter[Any] = TypeAdapter(Reward)


def said(reward: dict[str, Any], *completions: str, **columns: list[str]) -> list[float]:
    """What a reward says of answers; their tokens are their letters."""
    ids = [list(text.encode()) for text in completions]
    given = {f"given_{name}": values for name, values in columns.items()}
    scores = scores_of(READ.validate_python(reward))
    return scores(completions=list(completions), completion_ids=ids, **given)


def test_exact_match() -> None:
    reward = {"type": "exact_match"}
    assert said(reward, " 42\n", "43", answer=["42", "42"]) == [1.0, 0.0]
    assert said(reward, "Seoul", answer=["seoul"]) == [0.0]
    assert said(reward | {"ignore_case": True}, "Seoul", answer=["seoul"]) == [1.0]


def test_exact_match_of_the_last_number() -> None:
    """As GSM8K's answers are compared: the reasoning before it does not count."""
    reward = {"type": "exact_match", "compare": "last_number", "column": "solution"}
    answers = ["3 + 4 = 7", "It costs 1,200.50.", "no number", "7.0"]
    solution = ["… #### 7", "1200.5", "7", "7"]
    assert said(reward, *answers, solution=solution) == [1.0, 1.0, 0.0, 1.0]


def test_regex() -> None:
    reward = {"type": "regex", "pattern": "<think>.*</think>"}
    assert said(reward, "a<think>b</think>", "b") == [1.0, 0.0]
    assert said(reward | {"match": "fullmatch"}, "a<think>b</think>") == [0.0]


def test_a_pattern_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leash, "SECONDS", 0.3)
    with pytest.raises(InvalidSpec, match="write it without nested repetitions"):
        said({"type": "regex", "pattern": "(a+)+$"}, "a" * 40 + "b")


@pytest.mark.parametrize(
    ("bounds", "text", "expected"),
    [
        ({"max": 4}, "abcd", 1.0),
        ({"max": 4}, "abcde", 0.75),
        ({"max": 4}, "a" * 9, 0.0),
        ({"min": 4}, "abc", 0.75),
        ({"min": 2, "max": 3, "unit": "words"}, "one two", 1.0),
        ({"min": 4, "unit": "characters"}, "가나다", 0.75),
        ({"min": 4, "unit": "tokens"}, "가나다", 1.0),
    ],
)
def test_length(bounds: dict[str, Any], text: str, expected: float) -> None:
    assert said({"type": "length"} | bounds, text) == [pytest.approx(expected)]


def test_json_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0}, "tag": {"enum": ["a", "b"]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    reward = {"type": "json_schema", "json_schema": schema}
    texts = ['{"n": 3}', '{"n": -1}', '{"n": 1, "x": 2}', '{"tag": "a"}', "{n: 3}", '{"n": 1.5}']
    assert said(reward, *texts) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert said({"type": "json_schema"}, "[1]", "[1") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["string", "null"]}, None, 3),
        ({"type": "number"}, 1.5, True),
        ({"type": "integer"}, 2.0, 2.5),
        ({"items": {"type": "string"}, "minItems": 1, "maxItems": 2}, ["a"], []),
        ({"items": {"type": "string"}}, ["a"], ["a", 1]),
        ({"minLength": 2, "maxLength": 3, "pattern": "^a"}, "ab", "ba"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 2}, 1, 2),
        ({"anyOf": [{"const": 1}, {"const": 2}]}, 2, 3),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, 5, 1.5),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 1.5, 5),
        ({"not": {"type": "string"}}, 1, "a"),
        (True, 1, None),
    ],
)
def test_a_schema(schema: Any, good: Any, bad: Any) -> None:
    assert schema_problem(schema) is None
    assert fits(good, schema)
    assert schema is True or not fits(bad, schema)


def test_keywords() -> None:
    reward = {"type": "keyword", "keywords": ["sorry", "refund"]}
    texts = ["sorry", "Sorry, a refund", "no"]
    assert said(reward, *texts) == [0.5, 0.5, 0.0]
    assert said(reward | {"ignore_case": True}, *texts) == [0.5, 1.0, 0.0]
    assert said(reward | {"match": "any"}, *texts) == [1.0, 1.0, 0.0]
    assert said(reward | {"match": "none"}, *texts) == [0.0, 0.0, 1.0]
    column = {"type": "keyword", "column": "must"}
    assert said(column, "a b", "c", must=['["a", "x"]', "c"]) == [0.5, 1.0]


def test_names_tell_rewards_of_one_type_apart() -> None:
    rewards = [{"type": "regex", "pattern": p} for p in "abc"] + [{"type": "length", "max": 3}]
    named = names_of([READ.validate_python(reward) for reward in rewards])
    assert named == ["regex", "regex_2", "regex_3", "length"]


@pytest.mark.parametrize(
    ("reward", "field", "message"),
    [
        ({"type": "regex", "pattern": "(a"}, "pattern", "is no regular expression"),
        ({"type": "length"}, "max", "set one of them at least"),
        ({"type": "length", "min": 5, "max": 3}, "min", "above max, which is 3: lower it"),
        (
            {"type": "json_schema", "json_schema": {"$ref": "http://x"}},
            "json_schema",
            "'$ref', which is not checked here",
        ),
        (
            {"type": "json_schema", "json_schema": {"properties": {"a": {"type": "text"}}}},
            "json_schema",
            "'text' is no type",
        ),
        (
            {"type": "json_schema", "json_schema": {"pattern": "("}},
            "json_schema",
            "'pattern' is no regular expression",
        ),
        ({"type": "keyword"}, "keywords", "must be set, and not both"),
        ({"type": "keyword", "keywords": ["a"], "column": "b"}, "keywords", "not both"),
        ({"type": "exact_match", "weight": 0}, "weight", "is 0"),
        (
            {"type": "reward_model", "model": {"source": "job", "name_or_path": "job_1"}},
            "model/source",
            "use 'hub' or 'folder'",
        ),
        (
            {"type": "reward_model", "model": {"name_or_path": "a/b", "token": {"secret": "s"}}},
            "model/token",
            "is for the trained model alone",
        ),
    ],
)
def test_what_cannot_judge(reward: dict[str, Any], field: str, message: str) -> None:
    spec = TrainSpec.model_validate(
        {
            "task": {"type": "grpo", "rewards": [{"type": "exact_match"}, reward]},
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
        }
    )
    [problem] = check(spec)
    assert problem.pointer == f"/task/rewards/1/{field}"
    assert message in problem.message
