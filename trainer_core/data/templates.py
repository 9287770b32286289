"""Chat templates: which one a run uses, and rendering conversations through it."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jinja2

from trainer_core.data.jinja import Program, Spans, TooMuch, compile_template
from trainer_core.data.named_templates import CHATML, NAMED
from trainer_core.data.rows import BadRow, Message
from trainer_core.errors import InvalidSpec

FIELD = "task.chat_template"
# What a template's own expressions raise: 1 / 0, range(10**9), a macro that calls itself.
_ITS_OWN = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Template:
    """A Jinja chat template with the special tokens that it may write."""

    text: str
    variables: dict[str, Any]

    @property
    def hash(self) -> str:
        """sha256 of the template's text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def marks_generation(self) -> bool:
        """Whether the template marks what the assistant says with `{% generation %}`."""
        return _MARKER.search(self.text) is not None

    def given(self, variables: Mapping[str, Any]) -> "Template":
        """The template with further variables, such as the tools of a conversation."""
        return replace(self, variables={**self.variables, **variables}) if variables else self

    def render(self, messages: list[Message], *, prompt: bool = False) -> str:
        """Render messages, with the assistant's header at the end if `prompt`.

        Raises BadRow where the template refuses them, in the template's words.
        """
        text, _ = self._run(messages, prompt=prompt)
        return text

    def render_marked(self, messages: list[Message]) -> tuple[str, Spans]:
        """Render messages; also the character ranges inside of `{% generation %}`."""
        return self._run(messages)

    def _run(self, messages: list[Message], *, prompt: bool = False) -> tuple[str, Spans]:
        program = self._program()
        try:
            return program.run(messages, {**self.variables, "add_generation_prompt": prompt})
        except TooMuch as error:
            raise InvalidSpec(
                f"the chat template {error}: give another one in {FIELD}", FIELD
            ) from error
        except (jinja2.TemplateError, *_ITS_OWN) as error:
            roles = ", ".join(message["role"] for message in messages[:8])
            raise BadRow(
                f"the chat template refuses this conversation (roles: {roles}): {error}"
            ) from error

    def _program(self) -> Program:
        try:
            return compile_template(self.text)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidSpec(
                f"{FIELD} is not valid Jinja: line {error.lineno}: {error.message}", FIELD
            ) from error
        except (RecursionError, SyntaxError) as error:
            raise InvalidSpec(f"{FIELD} is nested too deeply", FIELD) from error
        except TooMuch as error:
            raise InvalidSpec(f"{FIELD} {error}: give another one", FIELD) from error


def choose_template(wanted: str, tokenizer: Any) -> Template:
    """The template for `task.chat_template`: the tokenizer's own, a named or given one, or ChatML.

    Raises InvalidSpec where there is none, or the given text is no template.
    """
    return Template(_text(wanted, tokenizer), dict(tokenizer.special_tokens_map))


def _text(wanted: str, tokenizer: Any) -> str:
    if wanted in ("auto", "tokenizer"):
        if tokenizer.chat_template:
            return str(tokenizer.get_chat_template())
        if wanted == "tokenizer":
            raise InvalidSpec(
                f"{FIELD} is 'tokenizer', but the model's tokenizer has no chat template: use "
                "'auto' for ChatML, or give a Jinja template",
                FIELD,
            )
        return chatml(tokenizer)
    if wanted in NAMED:
        return _named(wanted, tokenizer)
    if "{{" not in wanted and "{%" not in wanted:
        raise InvalidSpec(
            f"{FIELD} is '{wanted[:60]}', which is neither 'auto', 'tokenizer', a name "
            f"({', '.join(NAMED)}) nor a Jinja template: give one of these",
            FIELD,
        )
    return wanted


def _named(name: str, tokenizer: Any) -> str:
    """A template of the table; raises InvalidSpec where the tokenizer lacks what it needs."""
    template = NAMED[name]
    vocabulary = tokenizer.get_vocab()
    lacking = [token for token in template.tokens if token not in vocabulary]
    if not lacking and "eos_token" in template.text and tokenizer.eos_token is None:
        lacking = ["an end-of-sequence token"]
    if lacking:
        raise InvalidSpec(
            f"{FIELD} is '{name}', which writes {', '.join(lacking)}, but the model's tokenizer "
            "has no such token: use 'auto', or another template",
            FIELD,
        )
    return template.text


def chatml(tokenizer: Any) -> str:
    """ChatML for a tokenizer without a template: turns end with EOS, BOS once where it is usual."""
    if tokenizer.eos_token is None:
        raise InvalidSpec(
            "the model's tokenizer has neither a chat template nor an end-of-sequence token: "
            f"give a Jinja template in {FIELD}",
            FIELD,
        )
    # Turns end with the tokenizer's own EOS: it may have no token of ChatML's, and every engine
    # stops at EOS without being told.
    return ("{{- bos_token -}}" if adds_bos(tokenizer) else "") + CHATML.replace("END", "eos_token")


def adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer begins plain text with BOS by itself."""
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id
