"""Chat templates of other people as programs: what they can do, for how long, with how much.

The language is Transformers' dialect, so that a template renders here as it does at inference:
blocks trimmed, `break` and `continue`, `{% generation %}`, `raise_exception`, `strftime_now` and
a `tojson` that escapes nothing.
"""

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer_core.data import leash
from trainer_core.data.tool_calls import texts_in

Spans = list[tuple[int, int]]
_MOST_BITS = 65_536  # of a number
_MOST_ITEMS = 1 << 24  # of a text or list that is multiplied
_LEAST_OUTPUT = 16 << 20  # characters of a conversation that every template may write
_OUTPUT_FACTOR = 16


class TooMuch(Exception):
    """A template that does not end, or takes too much memory, or writes too much."""


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}`: remembers where in the output it wrote."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way of saying it

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.written = 0
        self.spans: Spans = []

    def parse(self, parser: Parser) -> nodes.Node:
        """Wrap the body into a call of `_mark`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Macro) -> str:
        text = str(caller())
        self.spans.append((self.written, self.written + len(text)))
        return text


class Program:
    """A compiled template."""

    def __init__(self, environment: jinja2.Environment, template: jinja2.Template) -> None:
        self._template = template
        [self._generation] = [
            e for e in environment.extensions.values() if isinstance(e, _Generation)
        ]

    def run(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> tuple[str, Spans]:
        """Render; also the character ranges that `{% generation %}` wrote.

        Raises TooMuch, jinja2.TemplateError, and whatever the template's own expressions raise.
        """
        most = _LEAST_OUTPUT
        generation, blocks = self._generation, []
        generation.written, generation.spans = 0, []
        values = {"tools": None, "documents": None, **variables, "messages": messages}
        with _limited():
            for block in self._template.generate(values):
                blocks.append(block)
                generation.written += len(block)
                if generation.written > most:
                    most = _most_output(messages, variables)
                    if generation.written > most:
                        raise TooMuch(f"writes more than {most} characters for one conversation")
            return "".join(blocks), generation.spans


def _most_output(messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> int:
    """Characters that a template may write for a conversation."""
    given = [*messages, variables.get("tools")]
    contents = sum(len(text) for value in given for text in texts_in(value))
    return max(_LEAST_OUTPUT, _OUTPUT_FACTOR * contents)


@contextmanager
def _limited() -> Iterator[None]:
    try:
        with leash.held():
            yield
    except leash.TooSlow as error:
        raise TooMuch(f"runs longer than {leash.SECONDS:g} s for one conversation") from error
    except MemoryError:
        pass
    else:
        return
    # Outside of the handler: the error's traceback holds what the template had made.
    raise TooMuch(f"needs more than {leash.MEMORY >> 20} MiB for one conversation")


@lru_cache(maxsize=8)
def compile_template(text: str) -> Program:
    """Compile a template.

    Raises jinja2.TemplateSyntaxError, TooMuch for constants that cannot be computed, and
    RecursionError or SyntaxError for what is nested too deeply.
    """
    environment = _environment()
    with _limited():
        return Program(environment, environment.from_string(text))


def syntax_problem(text: str) -> str | None:
    """What is wrong with a template's syntax; None where nothing is. Nothing of it is run."""
    if "{{" not in text and "{%" not in text:
        return "is neither 'auto', 'tokenizer', a known name nor a Jinja template"
    try:
        _environment().parse(text)
    except jinja2.TemplateSyntaxError as error:
        return f"is not valid Jinja: line {error.lineno}: {error.message}"
    except RecursionError:
        return "is nested too deeply"
    return None


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    # These alone run for hours inside of one step of the interpreter, where no timer stops them.
    environment.intercepted_binops = frozenset({"*", "**"})
    environment.binop_table = {**environment.binop_table, "*": _times, "**": _power}
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _check(left.bit_length() + right.bit_length(), _MOST_BITS, "a number")
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | list | tuple) and isinstance(count, int):
            _check(len(items) * count, _MOST_ITEMS, "a text or list")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _check(left.bit_length() * right, _MOST_BITS, "a number")
    return operator.pow(left, right)


def _check(size: int, most: int, what: str) -> None:
    if size > most:
        raise OverflowError(f"{what} grows too large")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)
