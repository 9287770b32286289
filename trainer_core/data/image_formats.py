"""Formats with images: labelled images, and conversations about images."""

from dataclasses import replace
from typing import Any

from trainer_core.data import chat_formats
from trainer_core.data.messages import parsed
from trainer_core.data.parts import MARK, count_marks, marked
from trainer_core.data.row_format import RowFormat, existing
from trainer_core.data.rows import BadRow, Conversation, LabelledImage, Pictured, Sample

IMAGE_COLUMNS = ("images", "image")


def _labelled(values: dict[str, Any]) -> Sample:
    return LabelledImage(existing(values, "image"), existing(values, "label"))


def _messages(values: dict[str, Any]) -> Sample:
    column = next((c for c in chat_formats.TURNS["messages"] if c in values), "messages")
    found: list[Any] = []
    turns = _marked_turns(existing(values, column), column, found)
    given = {name: values[name] for name in chat_formats.GIVEN if name in values}
    return _pictured(chat_formats.MESSAGES.convert({**given, "messages": turns}), values, found)


def _prompt_completion(values: dict[str, Any]) -> Sample:
    found: list[Any] = []
    sides = {
        name: _as_turns(existing(values, name), role, name, found)
        for name, role in (("prompt", "user"), ("completion", "assistant"))
    }
    given = {name: values[name] for name in chat_formats.GIVEN if name in values}
    return _pictured(chat_formats.PROMPT_COMPLETION.convert({**given, **sides}), values, found)


def _as_turns(content: Any, role: str, where: str, found: list[Any]) -> Any:
    """A list of turns, also of a text alone: those who look at images go by a template."""
    if isinstance(content, str) and not isinstance(parsed(content), list):
        content = [{"role": role, "content": content}]
    return _marked_turns(content, where, found)


def _marked_turns(turns: Any, where: str, found: list[Any]) -> Any:
    turns = parsed(turns)
    if not isinstance(turns, list):
        return turns
    return [_marked_turn(turn, f"{where}[{i}]", found) for i, turn in enumerate(turns)]


def _marked_turn(turn: Any, where: str, found: list[Any]) -> Any:
    if not isinstance(turn, dict):
        return turn
    contents = {name: turn[name] for name in ("content", "value") if turn.get(name) is not None}
    return turn | {name: marked(c, f"{where}.{name}", found) for name, c in contents.items()}


def _pictured(sample: Sample, values: dict[str, Any], found: list[Any]) -> Sample:
    """The conversation with its images, each at its place; without places, before the question."""
    if not isinstance(sample, Conversation):
        raise TypeError(f"a conversation expected, not {type(sample).__name__}")
    images = _listed(values)
    if images and found:
        raise BadRow("it has images both in `images` and in its messages: keep one")
    images = images or found
    if not images:
        raise BadRow("it has no image: rows of texts alone are for task 'sft'")
    messages = sample.messages
    if not count_marks(messages):
        messages = _before_question(messages, len(images))
    places = count_marks(messages)
    if places != len(images):
        raise BadRow(f"it has {places} places for images, but {len(images)} images")
    return Pictured(replace(sample, messages=messages), tuple(images))


def _before_question(messages: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        raise BadRow("it has no message of role 'user' that its images could belong to")
    asked = messages[first] | {"content": MARK * count + messages[first]["content"]}
    return [*messages[:first], asked, *messages[first + 1 :]]


def _listed(values: dict[str, Any]) -> list[Any]:
    given = next((values[c] for c in IMAGE_COLUMNS if values.get(c) is not None), None)
    given = parsed(given)
    if given is None or given == "":
        return []
    return given if isinstance(given, list) else [given]


LABELLED_IMAGES = RowFormat(
    ("image", "label"),
    ("image", "label"),
    "`image` and `label` (or images in one folder for each label)",
    _labelled,
)
IMAGE_MESSAGES = RowFormat(
    (*chat_formats.TURNS["messages"], *IMAGE_COLUMNS, *chat_formats.GIVEN),
    (),
    "`messages` (role, content) and `images`",
    _messages,
)
IMAGE_PROMPT_COMPLETION = RowFormat(
    ("prompt", "completion", *IMAGE_COLUMNS, *chat_formats.GIVEN),
    ("prompt", "completion", "images"),
    "`prompt`, `completion` and `images`",
    _prompt_completion,
)
