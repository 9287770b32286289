"""Formats of preferences: `chosen` and `rejected` with what they answer, and OpenAI's columns."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from trainer_core.data.messages import MESSAGE_COLUMNS, checked, kind, message, parsed, read_turns
from trainer_core.data.row_format import RowFormat, existing, optional_text, text
from trainer_core.data.rows import BadRow, Conversation, Message, PlainText, Preference, Sample
from trainer_core.data.tool_calls import read_tools


def _preference(values: dict[str, Any]) -> Sample:
    answers = [parsed(existing(values, name)) for name in ("chosen", "rejected")]
    question = _question(values)
    if isinstance(question, str):
        if all(isinstance(answer, str) for answer in answers):
            asked = checked(question, "prompt")
            return _pair([PlainText(asked, t) for t in _texts(answers)])
        return _pair(_about(question, _conversations(answers)))
    if question is not None:
        turns = zip(answers, ("chosen", "rejected"), strict=True)
        replies = [_reply(answer, name) for answer, name in turns]
        return _pair([Conversation([*question, *reply], len(question)) for reply in replies])
    if all(isinstance(answer, str) for answer in answers):
        return _pair(_split_texts(_texts(answers)))
    return _pair(_split(_conversations(answers)))


def _pair(samples: Sequence[Conversation | PlainText]) -> Preference:
    if samples[0] == samples[1]:
        raise BadRow("`chosen` and `rejected` are the same: there is nothing to prefer")
    return Preference(samples[0], samples[1])


def _question(values: dict[str, Any]) -> str | list[Message] | None:
    """What both answer: a text, messages, or None where it stands in the answers themselves."""
    prompt = parsed(values.get("prompt"))
    if isinstance(prompt, list):
        return read_turns(prompt, "prompt")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise BadRow(f"`prompt` must be a string or a list of messages, not {kind(prompt)}")
        return prompt
    for name in MESSAGE_COLUMNS:
        if values.get(name) is not None:
            return read_turns(values[name], name)
    if "instruction" not in values:
        return None
    asked = text(values, "instruction")
    if given := optional_text(values, "input"):
        asked = f"{asked}\n{given}"
    system = optional_text(values, "system")
    before = [message("system", system, "system")] if system else []
    return [*before, message("user", asked, "instruction")]


def _reply(answer: Any, name: str) -> list[Message]:
    if isinstance(answer, str):
        return [message("assistant", answer, name)]
    return read_turns([answer] if isinstance(answer, dict) else answer, name)


def _texts(answers: Sequence[Any]) -> list[str]:
    return [checked(a, name) for a, name in zip(answers, ("chosen", "rejected"), strict=True)]


def _conversations(answers: Sequence[Any]) -> list[list[Message]]:
    if not all(isinstance(answer, list) for answer in answers):
        raise BadRow(
            "`chosen` and `rejected` must both be strings or both be lists of messages; they are "
            f"{kind(answers[0])} and {kind(answers[1])}"
        )
    return [read_turns(a, n) for a, n in zip(answers, ("chosen", "rejected"), strict=True)]


def _about(question: str, whole: list[list[Message]]) -> list[Conversation]:
    """Whole conversations beside a `prompt`, which must be what they begin with."""
    split = _split(whole)
    asked = [m["content"] for m in split[0].messages[: split[0].prompt_messages]]
    if question not in asked:
        raise BadRow(
            "`prompt` is a text, but `chosen` and `rejected` are conversations that do not begin "
            "with it: give `prompt` as a list of messages"
        )
    return split


def _split(whole: list[list[Message]]) -> list[Conversation]:
    """The prompt is what two whole conversations share."""
    pairs = zip(*whole, strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if not shared:
        raise BadRow(
            "`chosen` and `rejected` begin differently, so there is no prompt that both answer: "
            "give it in `prompt`"
        )
    return [Conversation(turns, shared) for turns in whole]


def _split_texts(whole: list[str]) -> list[PlainText]:
    """The prompt is what two whole texts share, without a blank at its end."""
    pairs = zip(*whole, strict=False)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    shared = len(whole[0][:shared].rstrip())
    if not shared:
        raise BadRow(
            "`chosen` and `rejected` begin differently, so there is no prompt that both answer: "
            "give it in `prompt`"
        )
    return [PlainText(t[:shared], t[shared:]) for t in whole]


PREFERENCE = RowFormat(
    ("prompt", "chosen", "rejected", *MESSAGE_COLUMNS, "instruction", "input", "system"),
    ("chosen", "rejected"),
    "`chosen` and `rejected` (with `prompt`, or whole conversations)",
    _preference,
)


_OPENAI = ("input", "preferred_output", "non_preferred_output")


def _openai_preference(values: dict[str, Any]) -> Sample:
    asked, *answers = (parsed(existing(values, name)) for name in _OPENAI)
    if not isinstance(asked, dict):
        raise BadRow(f"`input` must be an object with `messages`, not {kind(asked)}")
    question = read_turns(existing(asked, "messages"), "input.messages")
    tools = read_tools(asked.get("tools"))
    given = {} if tools is None else {"tools": tools}
    return _pair(
        [
            Conversation([*question, *_answer(answer, name)], len(question), given)
            for answer, name in zip(answers, _OPENAI[1:], strict=True)
        ]
    )


def _answer(turns: Any, name: str) -> list[Message]:
    messages = read_turns(turns, name)
    if messages[0]["role"] != "assistant":
        raise BadRow(f"`{name}[0].role` is '{messages[0]['role']}': an answer is the assistant's")
    return messages


OPENAI_PREFERENCE = RowFormat(
    _OPENAI,
    _OPENAI,
    "`input` (messages), `preferred_output` and `non_preferred_output`",
    _openai_preference,
)
