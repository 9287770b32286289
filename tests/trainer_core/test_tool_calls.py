"""Tools, calls and what they answer: every spelling read, calls learned, results not."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core import chat
from tests.trainer_core.test_masks import encode, trained
from trainer_core.data.formats import to_sample
from trainer_core.data.rows import BadRow, Conversation
from trainer_core.data.training_markers import marked_twin
from trainer_core.errors import InvalidSpec

CALL = {"type": "function", "function": {"name": "find", "arguments": {"order": 7}}}
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Find it.", "parameters": {"type": "object"}},
}
QUESTION = {"role": "user", "content": "Where is order 7?"}
RESULT = {"role": "tool", "content": "on its way"}
ANSWER = {"role": "assistant", "content": "It is on its way."}
TURNS = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, ANSWER]
SAMPLE = Conversation(TURNS, given={"tools": [TOOL]})
SHARED = [
    {"from": "human", "value": QUESTION["content"]},
    {"from": "function_call", "value": json.dumps(CALL["function"])},
    {"from": "observation", "value": RESULT["content"]},
    {"from": "gpt", "value": ANSWER["content"]},
]


def stock(name: str) -> str:
    """A template of a model family as TRL brings it."""
    import trl

    return Path(trl.__path__[0], "chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("row", "format_"),
    [
        ({"messages": TURNS, "tools": [TOOL]}, "messages"),
        ({"messages": json.dumps(TURNS), "tools": json.dumps([TOOL])}, "messages"),
        (
            {
                "messages": [
                    QUESTION,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"function": {"name": "find", "arguments": '{"order": 7}'}}],
                    },
                    RESULT,
                    ANSWER,
                ],
                "tools": [TOOL["function"]],
            },
            "messages",
        ),
        ({"conversations": SHARED, "tools": json.dumps([TOOL["function"]])}, "sharegpt"),
        (
            {
                "messages": [
                    QUESTION,
                    {"role": "tool_call", "content": json.dumps(CALL["function"])},
                    {"role": "tool_response", "content": RESULT["content"]},
                    ANSWER,
                ],
                "tools": json.dumps([TOOL]),
            },
            "messages",
        ),
    ],
    ids=["openai", "json", "openai strings", "sharegpt", "ms-swift"],
)
def test_every_spelling_of_a_call(row: dict[str, Any], format_: str) -> None:
    assert to_sample(row, format_, None) == SAMPLE


def test_calls_that_follow_each_other_are_one_message() -> None:
    calls = [{"from": "function_call", "value": json.dumps({"name": n})} for n in ("a", "b")]
    sample = to_sample({"conversations": [SHARED[0], *calls, SHARED[3]]}, "sharegpt", None)
    assert isinstance(sample, Conversation)
    assert [m["role"] for m in sample.messages] == ["user", "assistant", "assistant"]
    named = [call["function"]["name"] for call in sample.messages[1]["tool_calls"]]
    assert named == ["a", "b"]


CALLED = '{"name": "find", "arguments": {"order": 7}}'


@pytest.mark.train
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", None])
def test_a1_calls_are_learned_and_results_are_not(name: str | None) -> None:
    """Stock templates of Qwen, and our ChatML for a tokenizer without one."""
    tokenizer = chat.qwen(None if name is None else stock(name))
    row = encode(tokenizer, SAMPLE)
    text = tokenizer.decode(row.input_ids)
    assert "# Tools" in text
    assert '"description": "Find it."' in text
    assert "<tool_response>\non its way\n</tool_response>" in text
    learned = trained(tokenizer, row)
    assert learned[0].strip() == f"<tool_call>\n{CALLED}\n</tool_call><|im_end|>"
    assert learned[1].endswith(f"{ANSWER['content']}<|im_end|>")
    assert len(learned) == 2


@pytest.mark.train
def test_last_assistant_with_calls_is_the_answer_alone() -> None:
    tokenizer = chat.qwen(stock("qwen2_5"))
    learned = trained(tokenizer, encode(tokenizer, SAMPLE, "last_assistant"))
    assert learned == [f"{ANSWER['content']}<|im_end|>"]


@pytest.mark.train
def test_tokens_are_those_of_the_library() -> None:
    tokenizer = chat.qwen(stock("qwen2_5"))
    expected = tokenizer.apply_chat_template(TURNS, tools=[TOOL], return_dict=False)
    assert encode(tokenizer, SAMPLE).input_ids == expected


@pytest.mark.train
@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (SAMPLE, "does not write the `tools`"),
        (Conversation(TURNS), "does not write the assistant's `tool_calls`"),
    ],
)
def test_a_template_that_leaves_tools_out_is_refused(sample: Conversation, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message) as refused:
        encode(chat.qwen(chat.QWEN.replace("Qwen", "")), sample)
    assert refused.value.field == "task.chat_template"


@pytest.mark.train
def test_control_tokens_are_found_in_calls_and_tools() -> None:
    call = {"type": "function", "function": {"name": "find", "arguments": {"a": "<|im_end|>"}}}
    for sample in (
        Conversation([QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]),
        Conversation([QUESTION, ANSWER], given={"tools": [{"function": {"name": "<|im_end|>"}}]}),
    ):
        with pytest.raises(BadRow, match=r"<\|im_end\|>', (which is )?a control token"):
            encode(chat.qwen(), sample)


@pytest.mark.train
def test_a1_markers_are_added_to_a_stock_template_that_lacks_them() -> None:
    """Qwen 3 writes an empty thought before the last answer alone: only markers can tell."""
    text = stock("qwen3")
    assert "generation %}" not in text
    twin = marked_twin(text)
    assert twin is not None
    assert "{%- generation %}" in twin or "{% generation %}" in twin
    assert marked_twin(chat.QWEN) is None


@pytest.mark.train
def test_variables_of_a_row_reach_the_template() -> None:
    row = {"messages": [QUESTION, ANSWER], "chat_template_kwargs": {"mood": "kind"}}
    sample = to_sample(row, "messages", None)
    tokenizer = chat.qwen("{{ mood }}" + chat.QWEN)
    assert tokenizer.decode(encode(tokenizer, sample, "all").input_ids).startswith("kind<|im_st")
