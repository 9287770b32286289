"""What is odd about a chat template, though it can be trained with: told once, as warnings."""

from collections.abc import Iterator

from trainer_core.data.rows import BadRow, Message
from trainer_core.data.templates import Template
from trainer_core.errors import InvalidSpec

_TURNS: list[Message] = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four"},
]


def template_warnings(template: Template) -> Iterator[tuple[str, str]]:
    """Code and message of each finding; nothing of a template that refuses the probe."""
    try:
        prompt = template.render(_TURNS[:1], prompt=True)
        answered = template.render(_TURNS[:2])
        whole = template.render(_TURNS)
    except (BadRow, InvalidSpec):  # rows will say so
        return
    if not answered.startswith(prompt):
        yield (
            "template_prompt_differs",
            "the chat template begins an answer in another way than the prompt that a model is "
            "given to answer: a trained model may see there what it never saw in training",
        )
    if not whole.startswith(answered.rstrip()):
        yield (
            "template_history_differs",
            "the chat template writes an answer in another way once the conversation goes on: "
            "earlier answers are trained as they stand in the whole conversation",
        )
