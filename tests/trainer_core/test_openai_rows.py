"""Rows as OpenAI's fine-tuning guides spell them: conversations with weights, and preferences."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data.formats import detect, to_sample
from trainer_core.data.rows import BadRow, Conversation, Place, Preference, Row
from trainer_core.spec import DataSource

USER, GOOD, BAD = (
    {"role": "user", "content": "Where is my order?"},
    {"role": "assistant", "content": "It is on its way."},
    {"role": "assistant", "content": "No idea."},
)
TOOL = {
    "type": "function",
    "function": {
        "name": "track",
        "description": "Where a parcel is",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}
CALL = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "track", "arguments": json.dumps({"order": "7"})},
        }
    ],
}
PAIR = {
    "input": {"messages": [USER], "tools": [TOOL], "parallel_tool_calls": True},
    "preferred_output": [GOOD],
    "non_preferred_output": [BAD],
}


def detected(row: dict[str, Any]) -> str:
    rows = [Row(Place("data.train[0]", "rows.jsonl", 1, "line", None), row)]
    return detect(rows, DataSource(source="folder", path=str(Path("rows.jsonl"))), "data.train[0]")


def test_a_preference_is_known_by_its_columns() -> None:
    assert detected(PAIR) == "openai_preference"


def test_both_outputs_answer_the_input_with_its_tools() -> None:
    sample = to_sample(PAIR, "openai_preference", None)
    given = {"tools": [TOOL]}
    sides = (Conversation([USER, answer], 1, given) for answer in (GOOD, BAD))
    assert sample == Preference(*sides)


def test_a_call_of_a_tool_may_be_preferred() -> None:
    sample = to_sample({**PAIR, "preferred_output": [CALL]}, "openai_preference", None)
    assert isinstance(sample, Preference)
    assert isinstance(sample.chosen, Conversation)
    [call] = sample.chosen.messages[-1]["tool_calls"]
    assert call["function"]["name"] == "track"
    assert call["function"]["arguments"] == {"order": "7"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "Where is it?"}, "`input` must be an object with `messages`, not a string"),
        ({"input": {"tools": []}}, "`messages` is missing"),
        ({"preferred_output": "yes"}, "`preferred_output` must be a list"),
        ({"preferred_output": [USER]}, "`preferred_output[0].role` is 'user'"),
        ({"non_preferred_output": [GOOD]}, "are the same"),
    ],
)
def test_what_is_no_preference(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRow) as bad:
        to_sample({**PAIR, **change}, "openai_preference", None)
    assert message in bad.value.message


def test_answers_of_weight_0_carry_no_loss() -> None:
    row = {
        "messages": [USER, {**BAD, "weight": 0}, USER, {**GOOD, "weight": 1}],
        "tools": [TOOL],
        "parallel_tool_calls": False,
    }
    assert detected(row) == "messages"
    sample = to_sample(row, "messages", None)
    assert isinstance(sample, Conversation)
    assert sample.silent == {1}
    assert sample.given == {"tools": [TOOL]}
    assert [m["role"] for m in sample.messages] == ["user", "assistant"] * 2
