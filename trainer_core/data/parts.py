"""Contents with images in them: marked in texts, and given to templates as lists of parts."""

from collections.abc import Sequence
from typing import Any

from trainer_core.data.jinja import Spans
from trainer_core.data.messages import kind
from trainer_core.data.rows import BadRow, Message
from trainer_core.data.templates import Template

MARK = "\uf8f0"
"""Where an image stands in a content; no text has this character of private use."""
TAG = "<image>"
_OWN = ("image", "path", "bytes", "url")


def marked(content: Any, where: str, found: list[Any]) -> Any:
    """A content as text with a mark for each image; images that parts bring go to `found`.

    What is no content stays as it is: who reads it refuses it. Raises BadRow.
    """
    if isinstance(content, str):
        if MARK in content:
            raise BadRow(f"`{where}` holds the character U+F8F0, which marks images: take it out")
        return content.replace(TAG, MARK)
    if not isinstance(content, list):
        return content
    return "".join(_part(part, f"{where}[{i}]", found) for i, part in enumerate(content))


def _part(part: Any, where: str, found: list[Any]) -> str:
    if not isinstance(part, dict):
        raise BadRow(f"`{where}` must be an object with `type`, not {kind(part)}")
    if part.get("type") == "text":
        return str(marked(part.get("text"), f"{where}.text", found))
    if part.get("type") != "image":
        shown = str(part.get("type"))[:60]
        raise BadRow(f"`{where}.type` is '{shown}', which is not read: use 'text' or 'image'")
    given = next((part[name] for name in _OWN if part.get(name) is not None), None)
    if given is not None:
        found.append(given)
    return MARK


class PartsTemplate(Template):
    """A template that gets every content as a list of parts, as vision-language models want it."""

    def _run(self, messages: list[Message], *, prompt: bool = False) -> tuple[str, Spans]:
        return super()._run([_in_parts(message) for message in messages], prompt=prompt)


def of_parts(template: Template) -> Template:
    """The same template, given parts."""
    return PartsTemplate(template.text, template.variables)


def count_marks(messages: Sequence[Message]) -> int:
    """Places for images in a conversation."""
    return sum(message["content"].count(MARK) for message in messages)


def _in_parts(message: Message) -> Message:
    parts: list[dict[str, str]] = []
    for number, text in enumerate(message["content"].split(MARK)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return {**message, "content": parts}
