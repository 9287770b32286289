"""Row formats: detected without guessing, converted without altering."""

import json
from typing import Any

import pytest

from trainer_core.data.formats import detect, rename, to_sample
from trainer_core.data.rows import BadRow, Conversation, Place, PlainText, Row
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.spec import DataSource

CHAT = [{"role": "user", "content": "hi "}, {"role": "assistant", "content": " 안녕"}]
SHARED = [{"from": "human", "value": "hi "}, {"from": "gpt", "value": " 안녕"}]
FIELD = "data.train[0]"


def source(**fields: Any) -> DataSource:
    return DataSource.model_validate({"source": "folder", "path": "a.jsonl", **fields})


def row(values: dict[str, Any], line: int = 1) -> Row:
    return Row(Place(FIELD, "a.jsonl", line), values)


def detected(*values: dict[str, Any], **fields: Any) -> str:
    return detect([row(v, i) for i, v in enumerate(values, 1)], source(**fields), FIELD)


def refusal(*values: dict[str, Any], **fields: Any) -> InvalidData:
    with pytest.raises(InvalidData) as wrong:
        detected(*values, **fields)
    return wrong.value


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"messages": CHAT}, "messages"),
        ({"conversations": CHAT}, "messages"),
        ({"messages": CHAT, "prompt": "x", "prompt_id": "y"}, "messages"),
        ({"messages": json.dumps(CHAT)}, "messages"),  # a CSV has strings only
        ({"conversations": SHARED, "id": 3}, "sharegpt"),
        ({"messages": SHARED}, "sharegpt"),
        ({"instruction": "a", "input": "", "output": "b"}, "alpaca"),
        ({"prompt": "a", "completion": "b"}, "prompt_completion"),
        ({"query": "a", "response": "b"}, "query_response"),
        ({"segments": [{"text": "a", "label": True}]}, "segments"),
        ({"prompt": "a", "answer": "b"}, "prompt"),
        ({"text": "a"}, "text"),
    ],
)
def test_detection(values: dict[str, Any], expected: str) -> None:
    assert detected(values) == expected


def test_ambiguity_lists_the_candidates_and_the_field() -> None:
    problem = refusal({"instruction": "a", "input": "", "output": "b", "text": "c"})
    assert problem.field == "data.train[0].format"
    assert "fits several formats: 'alpaca', 'text'" in problem.message
    assert problem.message.endswith("say which it is in data.train[0].format")
    assert detected({"instruction": "a", "output": "b", "text": "c"}, format="alpaca") == "alpaca"


def test_rows_that_differ() -> None:
    problem = refusal({"text": "a"}, {"prompt": "a", "completion": "b"})
    assert "a.jsonl line 1 looks like 'text'" in problem.message
    assert "a.jsonl line 2 looks like 'prompt_completion'" in problem.message


def test_no_format_names_columns_and_the_nearest() -> None:
    message = refusal({"instuction": "a", "answer": "b"}).message
    assert "has the columns 'instuction', 'answer'" in message
    assert "is `instruction` meant by it?" in message
    assert "map columns in data.train[0].columns" in message


def test_columns_are_mapped_first() -> None:
    values = {"question": "a", "answer": "b", "extra": 1}
    columns = {"prompt": "question", "completion": "answer"}
    assert detected(values, columns=columns) == "prompt_completion"
    assert rename(values, columns) == {"prompt": "a", "completion": "b", "extra": 1}


def test_missing_mapped_column_names_what_exists() -> None:
    problem = refusal({"questions": "a", "answer": "b"}, columns={"prompt": "question"})
    assert problem.field == "data.train[0].columns"
    assert "`prompt` is the column 'question'" in problem.message
    assert "is 'questions' meant?" in problem.message
    assert "it has 'questions', 'answer'" in problem.message


def test_missing_column_of_a_given_format() -> None:
    problem = refusal({"prompt": "a", "completions": "b"}, format="prompt_completion")
    assert "a.jsonl line 1 has no column 'completion' (is 'completions' meant?)" in problem.message
    assert "map it in data.train[0].columns" in problem.message


def test_unknown_mapped_name() -> None:
    with pytest.raises(InvalidSpec, match=r"maps 'promt'.*is 'prompt' meant") as wrong:
        detected({"a": 1}, columns={"promt": "a"})
    assert wrong.value.field == "data.train[0].columns"


def converted(values: dict[str, Any], format_: str, system: str | None = None) -> Any:
    return to_sample(values, format_, system)


def test_messages_stay_as_they_are() -> None:
    assert converted({"messages": CHAT}, "messages") == Conversation(CHAT)
    assert converted({"conversations": SHARED}, "sharegpt") == Conversation(CHAT)
    assert converted({"messages": json.dumps(CHAT)}, "messages") == Conversation(CHAT)


def test_a38_nothing_is_added_unless_asked_for() -> None:
    plain = converted({"messages": CHAT}, "messages")
    assert [m["role"] for m in plain.messages] == ["user", "assistant"]
    with_system = converted({"messages": CHAT}, "messages", "Be kind.")
    assert with_system.messages[0] == {"role": "system", "content": "Be kind."}
    own = [{"role": "system", "content": "Own."}, *CHAT]
    assert converted({"messages": own}, "messages", "Be kind.").messages == own


def test_sharegpt_system_column() -> None:
    sample = converted({"conversations": SHARED, "system": "S"}, "sharegpt")
    assert sample.messages == [{"role": "system", "content": "S"}, *CHAT]


def test_alpaca_with_history() -> None:
    values = {
        "instruction": "Do",
        "input": "this",
        "output": "done",
        "system": "S",
        "history": [["q", "a"]],
    }
    assert converted(values, "alpaca").messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "Do\nthis"},
        {"role": "assistant", "content": "done"},
    ]


def test_prompt_and_completion() -> None:
    strings = {"prompt": "a ", "completion": " b"}
    assert converted(strings, "prompt_completion") == PlainText("a ", " b")
    lists = {"prompt": CHAT[:1], "completion": CHAT[1:]}
    assert converted(lists, "prompt_completion") == Conversation(CHAT, 1)
    assert converted(lists, "prompt_completion", "S").prompt_messages == 2


@pytest.mark.parametrize(
    ("values", "format_", "message"),
    [
        ({"messages": []}, "messages", "`messages` is an empty list"),
        ({"messages": None}, "messages", "not null"),
        ({"messages": ["hi"]}, "messages", "`messages[0]` must be an object"),
        ({"messages": [{"content": "x"}]}, "messages", "`messages[0]` has no `role`"),
        (
            {"messages": [{"role": "narrator", "content": "x"}]},
            "messages",
            "`messages[0].role` is 'narrator', which this task does not know",
        ),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            "messages",
            "`messages[0].content` must be a string, not a list",
        ),
        (
            {"messages": [*CHAT, {"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages",
            "`messages[2].tool_calls` must name the function",
        ),
        (
            {"messages": [{"role": "user", "content": "", "tool_calls": [{"name": "f"}]}]},
            "messages",
            "only the assistant calls tools",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "loss": True}]},
            "messages",
            "only the assistant's messages are learned",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]},
            "messages",
            "`messages[0].weight` must be true or false (1 or 0)",
        ),
        (
            {"messages": CHAT, "chat_template_kwargs": {"tools": []}},
            "messages",
            "`chat_template_kwargs` may not set 'tools'",
        ),
        ({"segments": [{"text": "a"}]}, "segments", "`segments[0]` must be an object with"),
        ({"query": "a"}, "query_response", "the column `response` is missing"),
        ({"prompt": CHAT}, "prompt", "`prompt` ends with an answer"),
        (
            {"messages": [{"role": {"a": 1}, "content": "x"}]},
            "messages",
            "`messages[0].role` is {'a': 1}, which this task does not know",
        ),
        ({"messages": "[" * 100_000}, "messages", "must be a list of messages"),
        (
            {"conversations": [{"from": ["x"], "value": "x"}]},
            "sharegpt",
            "`conversations[0].from` is ['x'], which this task does not know",
        ),
        ({"messages": CHAT, "tools": [{"n": "f"}]}, "messages", "`tools[0]` must be an object"),
        (
            {"conversations": [{"from": "function_call", "value": "x"}]},
            "sharegpt",
            "`conversations[0].value` must be a call with `name` and `arguments`",
        ),
        ({"instruction": "a"}, "alpaca", "the column `output` is missing"),
        ({"prompt": "a", "completion": CHAT}, "prompt_completion", "must both be strings or both"),
        ({"text": 3}, "text", "`text` must be a string, not a number"),
        ({"text": "\ud83d"}, "text", "half a character"),
    ],
)
def test_bad_row(values: dict[str, Any], format_: str, message: str) -> None:
    with pytest.raises(BadRow) as bad:
        converted(values, format_)
    assert message in bad.value.message


@pytest.mark.parametrize("value", [0, False, [], {}, 0.0], ids=repr)
@pytest.mark.parametrize("column", ["input", "system"])
def test_a_falsy_value_that_is_no_text_is_refused_and_not_left_out(
    column: str, value: object
) -> None:
    row = {"instruction": "add", "output": "b", column: value}
    with pytest.raises(BadRow, match=f"`{column}` must be a string, not"):
        to_sample(row, "alpaca", None)


@pytest.mark.parametrize("value", [0, False, {}], ids=repr)
def test_a_falsy_history_that_is_no_list_is_refused(value: object) -> None:
    row = {"instruction": "add", "output": "b", "history": value}
    with pytest.raises(BadRow, match="`history` must be a list"):
        to_sample(row, "alpaca", None)


@pytest.mark.parametrize("value", [None, ""])
def test_columns_that_may_be_left_out_may_be_empty(value: object) -> None:
    row = {"instruction": "a", "output": "b", "input": value, "system": value, "history": value}
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert to_sample(row, "alpaca", None) == Conversation(turns)
