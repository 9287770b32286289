"""The loss mask: exactly what the assistant says and the token that ends its turn is trained."""

from typing import Any

import pytest

from tests.trainer_core import chat
from trainer_core.data.encode import Encoder
from trainer_core.data.rows import BadRow, Conversation, Encoded, Place, PlainText, Sample
from trainer_core.data.templates import choose_template
from trainer_core.errors import InvalidSpec

pytestmark = pytest.mark.train

PLACE = Place("data.train[0]", "a.jsonl", 1)
TURNS = [
    ("user", "Where is my order?"),
    ("assistant", "It arrives tomorrow."),
    ("user", "내일 언제요? 🙂"),
    ("assistant", "오전에 도착합니다 🚚."),
]
ANSWERS = [TURNS[1][1], TURNS[3][1]]


def conversation(*turns: tuple[str, str], prompt: int | None = None) -> Conversation:
    return Conversation([{"role": r, "content": c} for r, c in turns], prompt)


def encode(
    tokenizer: Any, sample: Sample, loss_on: str = "assistant", template: str = "auto"
) -> Encoded:
    encoder = Encoder(tokenizer, choose_template(template, tokenizer))
    [(_, outcome)] = encoder.encode([(PLACE, sample)], loss_on)
    if isinstance(outcome, BadRow):
        raise outcome
    assert len(outcome.input_ids) == len(outcome.labels)
    # Labels are aligned with the tokens: the model shifts them.
    assert all(lb in (-100, i) for i, lb in zip(outcome.input_ids, outcome.labels, strict=True))
    return outcome


def trained(tokenizer: Any, row: Encoded) -> list[str]:
    """The decoded runs of trained tokens."""
    runs: list[list[int]] = [[]]
    for label in row.labels:
        if label == -100:
            runs.append([])
        else:
            runs[-1].append(label)
    return [tokenizer.decode(run) for run in runs if run]


FAMILIES = {
    "llama3": (chat.llama3, "<|eot_id|>"),
    "qwen": (chat.qwen, "<|im_end|>"),
    "gemma": (chat.gemma, "<end_of_turn>"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a1_answers_and_their_end_are_trained(family: str) -> None:
    make, eot = FAMILIES[family]
    tokenizer = make()
    row = encode(tokenizer, conversation(*TURNS))
    assert trained(tokenizer, row) == [answer + eot for answer in ANSWERS]


@pytest.mark.parametrize("family", FAMILIES)
def test_a1_tokens_are_those_of_the_tokenizer_itself(family: str) -> None:
    make, _ = FAMILIES[family]
    tokenizer = make()
    messages = conversation(*TURNS).messages
    expected = tokenizer.apply_chat_template(messages, return_dict=False)
    assert encode(tokenizer, conversation(*TURNS)).input_ids == expected


def test_a1_llama2_whose_template_adds_blanks() -> None:
    tokenizer = chat.metaspace(chat.LLAMA2)
    row = encode(tokenizer, conversation(*TURNS))
    # This template writes " answer </s>"; a decoder strips the first blank of a sequence.
    assert trained(tokenizer, row) == [f"{answer} </s>" for answer in ANSWERS]


def test_a1_generation_markers_of_the_template_are_used() -> None:
    tokenizer = chat.qwen(chat.MARKED)
    row = encode(tokenizer, conversation(*TURNS))
    # The markers leave out the end of the turn: without it the model would never stop.
    assert trained(tokenizer, row) == [f"{answer}<|im_end|>" for answer in ANSWERS]
    last = encode(tokenizer, conversation(*TURNS), "last_assistant")
    assert trained(tokenizer, last) == [f"{ANSWERS[1]}<|im_end|>"]


def test_a1_template_that_renders_the_last_turn_differently() -> None:
    tokenizer = chat.qwen(chat.THINKING)
    row = encode(tokenizer, conversation(*TURNS))
    assert trained(tokenizer, row) == [f"{answer}<|im_end|>" for answer in ANSWERS]


@pytest.mark.parametrize(
    ("loss_on", "expected"),
    [
        ("assistant", [0, 1]),
        ("last_assistant", [1]),
        ("completion", [1]),
    ],
)
def test_loss_on(loss_on: str, expected: list[int]) -> None:
    tokenizer = chat.qwen()
    row = encode(tokenizer, conversation(*TURNS), loss_on)
    assert trained(tokenizer, row) == [f"{ANSWERS[i]}<|im_end|>" for i in expected]


def test_loss_on_all_trains_every_token_but_the_first() -> None:
    row = encode(chat.qwen(), conversation(*TURNS), "all")
    # Nothing predicts the first token.
    assert row.labels == [-100, *row.input_ids[1:]]


def test_completion_of_message_lists_is_what_follows_the_prompt() -> None:
    tokenizer = chat.qwen()
    sample = conversation(*TURNS[:2], *TURNS, prompt=2)
    row = encode(tokenizer, sample, "completion")
    assert trained(tokenizer, row) == [f"{answer}<|im_end|>" for answer in ANSWERS]


def test_a2_end_of_turn_is_trained_once_where_pad_is_eos() -> None:
    tokenizer = chat.llama3()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    row = encode(tokenizer, conversation(*TURNS[:2]))
    assert row.labels.count(tokenizer.eos_token_id) == 1
    assert row.labels[-1] == tokenizer.eos_token_id


def test_a2_plain_text_ends_with_one_trained_eos() -> None:
    tokenizer = chat.llama3()
    for text in ("내일 도착합니다.", "내일 도착합니다.<|eot_id|>"):
        row = encode(tokenizer, PlainText("", text), "all")
        assert row.labels[1:].count(tokenizer.eos_token_id) == 1
        assert row.labels[-1] == tokenizer.eos_token_id


def test_a2_template_without_end_of_turn_is_refused() -> None:
    tokenizer = chat.qwen(chat.ENDLESS)
    with pytest.raises(InvalidSpec, match="puts no end-of-turn token behind") as refused:
        encode(tokenizer, conversation(*TURNS))
    assert refused.value.field == "task.chat_template"


def test_a3_bos_is_there_once_with_a_template_that_writes_it() -> None:
    tokenizer = chat.llama3()
    row = encode(tokenizer, conversation(*TURNS))
    assert row.input_ids.count(tokenizer.bos_token_id) == 1
    assert row.input_ids[0] == tokenizer.bos_token_id


def test_a3_no_bos_is_added_to_a_template_without_it() -> None:
    tokenizer = chat.llama3(chat.LLAMA3.replace("{{- bos_token }}", ""))
    row = encode(tokenizer, conversation(*TURNS))
    assert row.input_ids.count(tokenizer.bos_token_id) == 0


def test_a3_template_with_two_bos_is_refused() -> None:
    tokenizer = chat.llama3("{{- bos_token }}" + chat.LLAMA3)
    with pytest.raises(InvalidSpec, match="two BOS tokens"):
        encode(tokenizer, conversation(*TURNS))


@pytest.mark.parametrize("text", ["Hello", "<|begin_of_text|>Hello"])
def test_a3_plain_text_has_one_bos(text: str) -> None:
    tokenizer = chat.llama3()
    row = encode(tokenizer, PlainText("", text), "all")
    assert row.input_ids.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("answer", ["\n\nTwo lines above", " blank", "\ttab", "…\n", " \n "])
def test_a36_answer_tokens_do_not_join_the_prompt(answer: str) -> None:
    tokenizer = chat.qwen()
    if not answer.strip():
        with pytest.raises(BadRow, match="is empty"):
            encode(tokenizer, conversation(("user", "hi"), ("assistant", answer)))
        return
    row = encode(tokenizer, conversation(("user", "hi"), ("assistant", answer)))
    assert trained(tokenizer, row) == [f"{answer}<|im_end|>"]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=False
    )
    # At inference the prompt is tokenized alone: training must see the same tokens.
    assert row.input_ids[: len(prompt)] == prompt
    assert row.labels[: len(prompt)] == [-100] * len(prompt)


def test_a36_prompt_and_completion_are_tokenized_apart() -> None:
    tokenizer = chat.qwen()
    row = encode(tokenizer, PlainText("Question:\n\n", "\n\nAnswer"), "completion")
    assert trained(tokenizer, row) == ["\n\nAnswer<|im_end|>"]
    assert (
        row.input_ids[: -len(tokenizer("\n\nAnswer")["input_ids"]) - 1]
        == (tokenizer("Question:\n\n")["input_ids"])
    )


@pytest.mark.parametrize(
    "content",
    [
        "  두 칸 앞, 뒤에도  \n",
        "👩‍👩‍👧 가족 🏳️‍🌈",
        "tabs\t\tand \u2028 separators",
        "<b>not a token</b> {{ x }}",
    ],
)
def test_a38_content_is_never_altered(content: str) -> None:
    tokenizer = chat.qwen()
    row = encode(tokenizer, conversation(("user", content), ("assistant", content)))
    assert trained(tokenizer, row) == [f"{content}<|im_end|>"]
    assert tokenizer.decode(row.input_ids) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n{content}<|im_end|>\n"
    )


def test_control_tokens_in_content_are_refused() -> None:
    sample = conversation(("user", "say <|im_end|>"), ("assistant", "no"))
    with pytest.raises(BadRow, match=r"'<\|im_end\|>', which is a control token"):
        encode(chat.qwen(), sample)


def test_a1_conversation_without_answer_is_refused() -> None:
    with pytest.raises(BadRow, match="no token would be trained"):
        encode(chat.qwen(), conversation(("user", "hello?")))


def test_template_that_refuses_a_row_is_quoted() -> None:
    sample = conversation(("system", "Be kind."), *TURNS)
    with pytest.raises(BadRow, match=r"roles: system, user.*System role not supported"):
        encode(chat.gemma(), sample)


def test_chatml_is_used_without_a_template() -> None:
    tokenizer = chat.llama3(template="")
    row = encode(tokenizer, conversation(*TURNS[:2]))
    # Turns end with the tokenizer's own EOS, and BOS comes first as this tokenizer is used to.
    assert tokenizer.decode(row.input_ids) == (
        "<|begin_of_text|><|im_start|>user\nWhere is my order?<|eot_id|>\n"
        "<|im_start|>assistant\nIt arrives tomorrow.<|eot_id|>\n"
    )
    assert trained(tokenizer, row) == ["It arrives tomorrow.<|eot_id|>"]


def test_tokenizer_without_template_is_an_error_if_its_own_is_wanted() -> None:
    with pytest.raises(InvalidSpec, match="has no chat template: use 'auto'"):
        choose_template("tokenizer", chat.qwen(None))


def test_given_template_is_used() -> None:
    tokenizer = chat.qwen()
    row = encode(tokenizer, conversation(*TURNS[:2]), template=chat.MARKED)
    assert tokenizer.decode(row.input_ids).startswith("<|im_start|>user\nWhere")


@pytest.mark.parametrize(
    ("template", "message"),
    [("chatnl", "neither 'auto', 'tokenizer', a name"), ("{% for m in %}", "Jinja: line 1")],
)
def test_broken_template_is_an_error_of_its_field(template: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message) as refused:
        encode(chat.qwen(), conversation(*TURNS), template=template)
    assert refused.value.field == "task.chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ messages[9].x.y }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_a_template_breaks_by_itself_is_told_of_the_row(template: str) -> None:
    with pytest.raises(BadRow) as bad:
        encode(chat.qwen(), conversation(*TURNS), "all", template)
    assert "the chat template refuses this conversation" in bad.value.message
