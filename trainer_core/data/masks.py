"""The loss mask: which characters of a rendered conversation are trained.

The ranges come from `{% generation %}` markers where the template has them, else from the
differences between renderings of the conversation's beginnings, and, where a template renders a
beginning differently from the whole, from the places that the contents take in the whole.
Every trained turn ends with the token that ends a turn, once, and with nothing after it.
"""

import re
from collections.abc import Sequence
from typing import Any

from trainer_core.data.jinja import Spans
from trainer_core.data.rows import BadRow, Conversation, Message
from trainer_core.data.templates import FIELD, Template
from trainer_core.errors import InvalidSpec

_SENTINEL = "\ue000{}\ue001"


class Masker:
    """Renders conversations and says which character ranges carry loss."""

    def __init__(self, template: Template, tokenizer: Any) -> None:
        self._template = template
        self._specials = control_tokens(tokenizer)
        self._control = _pattern(self._specials)
        self._stops: re.Pattern[str] | None = None

    def render(self, sample: Conversation, loss_on: str) -> tuple[str, Spans]:
        """The rendered text and the ranges (start, end) of it that carry loss.

        Raises BadRow for a conversation that cannot be trained, InvalidSpec for a template that
        gives turns no end.
        """
        self._refuse_control_tokens(sample.messages)
        if loss_on == "all":
            text = self._template.render(sample.messages)
            return text, [(0, len(text))]
        turns = trained_turns(sample, loss_on)
        text, spans = self._spans(sample.messages, turns)
        return text, [self._close(text, span) for span in spans]

    def _refuse_control_tokens(self, messages: Sequence[Message]) -> None:
        if self._control is None:
            return
        for message in messages:
            if found := self._control.search(message["content"]):
                raise BadRow(
                    f"a message of role '{message['role']}' holds '{found.group()}', which is a "
                    "control token of this model: take it out of the text"
                )

    def _spans(self, messages: list[Message], turns: list[int]) -> tuple[str, Spans]:
        if self._template.marks_generation:
            return self._marked(messages, turns)
        text = self._template.render(messages)
        spans = [self._difference(text, messages, turn) for turn in turns]
        if all(spans):
            return text, [span for span in spans if span]
        return text, self._by_content(text, messages, turns)

    def _marked(self, messages: list[Message], turns: list[int]) -> tuple[str, Spans]:
        text, spans = self._template.render_marked(messages)
        assistant = assistant_turns(messages)
        if len(spans) == len(assistant):
            spans = [span for turn, span in zip(assistant, spans, strict=True) if turn in turns]
        elif turns != assistant:
            raise InvalidSpec(
                f"{FIELD} marks {len(spans)} ranges as generated in a conversation with "
                f"{len(assistant)} assistant turns: mark each turn once, or set task.loss_on to "
                "'assistant'",
                FIELD,
            )
        return text, [span for span in spans if text[slice(*span)].strip()]

    def _difference(self, text: str, messages: list[Message], turn: int) -> tuple[int, int] | None:
        """The range between the prompt for a turn and its end; None where beginnings differ."""
        before = self._prompt(messages[:turn])
        last = turn + 1 == len(messages)
        after = text if last else self._template.render(messages[: turn + 1])
        if before is None or not after.startswith(before) or not text.startswith(after):
            return None
        return len(before), len(after)

    def _prompt(self, messages: list[Message]) -> str | None:
        try:
            return self._template.render(messages, prompt=True)
        except BadRow:  # such as a conversation that the assistant begins
            return None

    def _by_content(self, text: str, messages: list[Message], turns: list[int]) -> Spans:
        """Where the contents stand in the whole, by rendering placeholders in their place."""
        placeholders = [_SENTINEL.format(i) for i in range(len(messages))]
        skeleton = self._template.render(
            [{**m, "content": p} for m, p in zip(messages, placeholders, strict=True)]
        )
        parts = re.split("\ue000(\\d+)\ue001", skeleton)
        spans: Spans = []
        position = len(parts[0])
        rebuilt = parts[0]
        for number, following in zip(parts[1::2], parts[2::2], strict=True):
            content = messages[int(number)]["content"]
            if not text.startswith(content, position):
                content = content.strip()
            if int(number) in turns:
                spans.append((position, position + len(content)))
            rebuilt += content + following
            position = len(rebuilt)
        if rebuilt != text or len(spans) != len(turns):
            raise InvalidSpec(
                f"{FIELD}: it cannot be seen which part of a rendered conversation the assistant "
                "says, because the template changes what it is given: mark that part with "
                "{% generation %} … {% endgeneration %} in a template of your own",
                FIELD,
            )
        return spans

    def _close(self, text: str, span: tuple[int, int]) -> tuple[int, int]:
        """Let a turn end exactly behind its end-of-turn token."""
        start, end = span
        found = list(self._control.finditer(text, start, end)) if self._control else []
        if found and not text[found[-1].end() : end].strip():
            return start, found[-1].end()
        following = self._stop_pattern().match(text, end)
        if following is None:
            raise InvalidSpec(
                f"{FIELD} puts no end-of-turn token behind what the assistant says, so a trained "
                "model would never stop: give a template that writes one, such as "
                "{{ eos_token }}",
                FIELD,
            )
        return start, following.end()

    def _stop_pattern(self) -> re.Pattern[str]:
        """Control tokens that can end a turn: not those that begin one."""
        if self._stops is None:
            question = [{"role": "user", "content": "a"}]
            header = self._template.render(question, prompt=True)
            header = header.removeprefix(self._template.render(question))
            variables = self._template.variables
            begins = {token for token in self._specials if token in header}
            if variables.get("bos_token") != variables.get("eos_token"):
                begins.add(variables.get("bos_token") or "")
            stops = [token for token in self._specials if token not in begins]
            self._stops = re.compile(rf"\s*(?:{_any_of(stops)})" if stops else r"(?!)")
        return self._stops


def trained_turns(sample: Conversation, loss_on: str) -> list[int]:
    """Indices of the messages that carry loss; raises BadRow where there are none.

    `completion` means the turns behind a prompt, or in a conversation its last turn.
    """
    turns = assistant_turns(sample.messages)
    if loss_on == "completion" and sample.prompt_messages is not None:
        turns = [turn for turn in turns if turn >= sample.prompt_messages]
    elif loss_on in ("completion", "last_assistant"):
        turns = turns[-1:]
    if not turns:
        raise BadRow("no token would be trained: it has no message of role 'assistant' to learn")
    for turn in turns:
        if not sample.messages[turn]["content"].strip():
            raise BadRow(f"the answer in message {turn + 1} is empty: there is nothing to learn")
    return turns


def assistant_turns(messages: Sequence[Message]) -> list[int]:
    """Indices of the assistant's messages."""
    return [i for i, message in enumerate(messages) if message["role"] == "assistant"]


def control_tokens(tokenizer: Any) -> list[str]:
    """Texts of the tokens that steer instead of say: every special added token."""
    added = tokenizer.added_tokens_decoder.values()
    texts = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
    return sorted(text for text in texts if text.strip())


def _pattern(tokens: Sequence[str]) -> re.Pattern[str] | None:
    if not tokens:
        return None
    return re.compile(_any_of(tokens))


def _any_of(tokens: Sequence[str]) -> str:
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
