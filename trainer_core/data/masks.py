"""The loss mask: which characters of a rendered conversation are trained.

The ranges come from `{% generation %}` markers where the template has them, else from the
differences between renderings of the conversation's beginnings. Where a template renders a
beginning differently from the whole, they come from markers that are added to a known stock
template, or from the places that the contents take in the whole. Every trained turn ends with the
token that ends a turn, once, and with nothing after it, unless `task.train_on_eot` says otherwise.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer_core.data.jinja import Spans
from trainer_core.data.rows import BadRow, Conversation, Message
from trainer_core.data.templates import FIELD, Template
from trainer_core.data.tool_calls import texts_in
from trainer_core.data.training_markers import marked_twin
from trainer_core.errors import InvalidSpec

EndOfTurn = Literal["turn", "last", "none", "all"]
_SENTINEL = "\ue000{}\ue001"
_PROBE = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
)


@dataclass(frozen=True, slots=True)
class _Turn:
    """A trained turn in the text: its end token stands from `stop` to `end`."""

    start: int
    stop: int
    end: int


class Masker:
    """Renders conversations and says which character ranges carry loss.

    `ends` says which end-of-turn tokens do: those of trained turns, the last of them, none, or
    every one of the conversation.
    """

    def __init__(self, template: Template, tokenizer: Any, ends: EndOfTurn = "turn") -> None:
        self._template = template
        self._ends = ends
        self._specials = control_tokens(tokenizer)
        self._control = _pattern(self._specials)
        self._stops: re.Pattern[str] | None = None
        twin = marked_twin(template.text)
        self._twin = None if twin is None else replace(template, text=twin)
        self._seen: set[str] = set()
        self._end: str | None = None
        self._end_is_known = False

    def render(self, sample: Conversation, loss_on: str) -> tuple[str, Spans]:
        """The rendered text and the ranges (start, end) of it that carry loss.

        Raises BadRow for a conversation that cannot be trained, InvalidSpec for a template that
        gives turns no end or does not write what the conversation holds.
        """
        self.refuse_control_tokens(sample)
        template = self._template.given(sample.given)
        self._check_tools(template, sample)
        if loss_on == "all":
            text = template.render(sample.messages)
            return text, [(0, len(text))]
        turns = trained_turns(sample, loss_on)
        text, spans = self._spans(template, sample, turns)
        closed = [self._close(text, span) for span in spans]
        self._check_calls(sample, turns, text, closed)
        return text, self._with_ends(text, closed)

    def prompt(self, sample: Conversation) -> str:
        """What the model is given before it answers; raises BadRow."""
        self.refuse_control_tokens(sample)
        template = self._template.given(sample.given)
        self._check_tools(template, sample)
        return template.render(sample.messages, prompt=True)

    def end_of_turn(self) -> str | None:
        """The token behind what the assistant says; None where a template has no such token."""
        if not self._end_is_known:
            self._end_is_known = True  # at once: finding it asks for it where all else fails
            self._end = self._find_end()
        return self._end

    def _find_end(self) -> str | None:
        sample = Conversation([dict(message) for message in _PROBE])
        try:
            text, spans = self._spans(self._template, sample, [1])
            turn = self._close(text, spans[0])
        except (BadRow, InvalidSpec, IndexError):
            return None
        return text[turn.stop : turn.end]

    def refuse_control_tokens(self, sample: Conversation) -> None:
        """Raise BadRow where a text of the row holds what steers this model."""
        if self._control is None:
            return
        for message in sample.messages:
            for text in _said(message):
                if found := self._control.search(text):
                    raise BadRow(
                        f"a message of role '{message['role']}' holds '{found.group()}', which is "
                        "a control token of this model: take it out of the text"
                    )
        for text in texts_in(sample.given.get("tools")):
            if found := self._control.search(text):
                raise BadRow(f"`tools` holds '{found.group()}', a control token of this model")

    def _check_tools(self, template: Template, sample: Conversation) -> None:
        """Once each: tools and what they answer must be written, or nobody would learn of them."""
        if "tools" in sample.given and "tools" not in self._seen:
            self._seen.add("tools")
            without = template.given({"tools": None})
            if template.render(sample.messages) == without.render(sample.messages):
                raise _unwritten("the `tools` of a row")
        answers = [i for i, m in enumerate(sample.messages) if m["role"] == "tool"]
        if answers and "answer" not in self._seen:
            self._seen.add("answer")
            mark = _SENTINEL.format(0)
            messages = list(sample.messages)
            messages[answers[0]] = {**messages[answers[0]], "content": mark}
            if mark not in template.render(messages):
                raise _unwritten("messages of role 'tool'")

    def _check_calls(
        self, sample: Conversation, turns: list[int], text: str, closed: list[_Turn]
    ) -> None:
        if len(turns) != len(closed):
            return
        for turn, place in zip(turns, closed, strict=True):
            for call in sample.messages[turn].get("tool_calls", ()):
                if call["function"]["name"] not in text[place.start : place.end]:
                    raise _unwritten("the assistant's `tool_calls`")

    def _spans(
        self, template: Template, sample: Conversation, turns: list[int]
    ) -> tuple[str, Spans]:
        messages = sample.messages
        if template.marks_generation:
            return self._marked(template, messages, turns)
        text = template.render(messages)
        spans = [self._difference(template, text, messages, turn) for turn in turns]
        if all(spans):
            return text, [span for span in spans if span]
        found = (
            self._by_twin(sample, text, turns)
            or self._by_content(template, text, messages, turns)
            or self._by_prompts(template, text, messages, turns)
        )
        if found is None:
            raise InvalidSpec(
                f"{FIELD}: it cannot be seen which part of a rendered conversation the assistant "
                "says, because the template changes what it is given: mark that part with "
                "{% generation %} … {% endgeneration %} in a template of your own",
                FIELD,
            )
        return text, found

    def _marked(
        self, template: Template, messages: list[Message], turns: list[int]
    ) -> tuple[str, Spans]:
        text, spans = template.render_marked(messages)
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

    def _by_twin(self, sample: Conversation, text: str, turns: list[int]) -> Spans | None:
        """The ranges that a known template's marked twin gives, where it writes the very same."""
        if self._twin is None:
            return None
        marked, spans = self._twin.given(sample.given).render_marked(sample.messages)
        assistant = assistant_turns(sample.messages)
        if marked != text or len(spans) != len(assistant):
            return None
        return [span for turn, span in zip(assistant, spans, strict=True) if turn in turns]

    def _difference(
        self, template: Template, text: str, messages: list[Message], turn: int
    ) -> tuple[int, int] | None:
        """The range between the prompt for a turn and its end; None where beginnings differ."""
        before = _prompt(template, messages[:turn])
        last = turn + 1 == len(messages)
        after = text if last else template.render(messages[: turn + 1])
        if before is None or not after.startswith(before) or not text.startswith(after):
            return None
        return len(before), len(after)

    def _by_content(
        self, template: Template, text: str, messages: list[Message], turns: list[int]
    ) -> Spans | None:
        """Where the contents stand in the whole, by rendering placeholders in their place.

        None where the template changes contents, or writes more than contents (calls of tools).
        """
        skeleton = template.render(
            [
                {**m, "content": _SENTINEL.format(i)} if m["content"] else m
                for i, m in enumerate(messages)
            ]
        )
        parts = re.split("\ue000(\\d+)\ue001", skeleton)
        spans: Spans = []
        position = len(parts[0])
        rebuilt = parts[0]
        for number, following in zip(parts[1::2], parts[2::2], strict=True):
            content = messages[int(number)]["content"]
            if not text.startswith(content, position):
                content = content.strip()
            if int(number) in turns and not messages[int(number)].get("tool_calls"):
                spans.append((position, position + len(content)))
            rebuilt += content + following
            position = len(rebuilt)
        return spans if rebuilt == text and len(spans) == len(turns) else None

    def _by_prompts(
        self, template: Template, text: str, messages: list[Message], turns: list[int]
    ) -> Spans | None:
        """From where the model is given the word to the next end of a turn; None: unknown.

        No content holds a control token, so that the next end is this turn's.
        """
        end = self.end_of_turn()
        spans: Spans = []
        for turn in turns if end is not None else ():
            before = _prompt(template, messages[:turn])
            stop = -1
            if before is not None and text.startswith(before):
                stop = text.find(end or "", len(before))
            if before is None or stop < 0:
                return None
            spans.append((len(before), stop))
        return spans or None

    def _close(self, text: str, span: tuple[int, int]) -> _Turn:
        """Let a turn end exactly behind its end-of-turn token."""
        start, end = span
        found = list(self._control.finditer(text, start, end)) if self._control else []
        if found and not text[found[-1].end() : end].strip():
            return _Turn(start, *found[-1].span())
        following = self._stop_pattern().match(text, end)
        if following is None:
            raise InvalidSpec(
                f"{FIELD} puts no end-of-turn token behind what the assistant says, so a trained "
                "model would never stop: give a template that writes one, such as "
                "{{ eos_token }}",
                FIELD,
            )
        return _Turn(start, following.start(1), following.end())

    def _with_ends(self, text: str, turns: list[_Turn]) -> Spans:
        """The ranges of the turns, with those end tokens that are to be learned."""
        if self._ends == "turn":
            return [(turn.start, turn.end) for turn in turns]
        spans = [(turn.start, turn.stop) for turn in turns]
        if self._ends == "last":
            spans[-1] = (turns[-1].start, turns[-1].end)
        if self._ends == "all":
            tokens = sorted({text[turn.stop : turn.end] for turn in turns})
            spans += [found.span() for found in re.finditer(_any_of(tokens), text)]
        return sorted(spans)

    def _stop_pattern(self) -> re.Pattern[str]:
        """Control tokens that can end a turn: not those that begin one."""
        if self._stops is None:
            question = [dict(_PROBE[0])]
            header = self._template.render(question, prompt=True)
            header = header.removeprefix(self._template.render(question))
            variables = self._template.variables
            begins = {token for token in self._specials if token in header}
            if variables.get("bos_token") != variables.get("eos_token"):
                begins.add(variables.get("bos_token") or "")
            stops = [token for token in self._specials if token not in begins]
            self._stops = re.compile(rf"\s*({_any_of(stops)})" if stops else r"(?!)()")
        return self._stops


def _said(message: Message) -> Iterator[str]:
    """Every text of a message that its row gave; names of its fields and roles are ours."""
    for name, value in message.items():
        if isinstance(value, str):
            if name != "role":
                yield value
        else:
            yield from texts_in(value)


def _prompt(template: Template, messages: list[Message]) -> str | None:
    try:
        return template.render(messages, prompt=True)
    except BadRow:  # such as a conversation that the assistant begins
        return None


def _unwritten(what: str) -> InvalidSpec:
    return InvalidSpec(
        f"{FIELD} does not write {what}, so they would not be learned: give a template that knows "
        "tools, or take them out of the rows",
        FIELD,
    )


def trained_turns(sample: Conversation, loss_on: str) -> list[int]:
    """Indices of the messages that carry loss; raises BadRow where there are none.

    `completion` means the turns behind a prompt, or in a conversation its last turn. Answers that
    the row itself takes out of the loss are left out.
    """
    turns = assistant_turns(sample.messages)
    if loss_on == "completion" and sample.prompt_messages is not None:
        turns = [turn for turn in turns if turn >= sample.prompt_messages]
    elif loss_on in ("completion", "last_assistant"):
        turns = turns[-1:]
    turns = [turn for turn in turns if turn not in sample.silent]
    if not turns:
        raise BadRow("no token would be trained: it has no message of role 'assistant' to learn")
    for turn in turns:
        message = sample.messages[turn]
        if not message["content"].strip() and not message.get("tool_calls"):
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
