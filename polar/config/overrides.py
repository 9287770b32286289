"""Overrides as Hydra's grammar reads them: `a.b=1e-4`, `+a=b`, `~a`, `task=sft`, `lr=1e-4,3e-4`."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from polar.config.errors import wrong

_INDEX = re.compile(r"\[(\d+)\]")
_STRUCTURE = set(",[]{}()'\"")
_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,:\[\]{}()'"]+""")


@dataclass(frozen=True)
class Override:
    """One override: `text` is the user's, `parsed` what Hydra makes of it."""

    text: str
    parsed: Any
    is_group: bool

    @property
    def key(self) -> str:
        """Return the dotted path, or the group."""
        return str(self.parsed.key_or_group)

    @property
    def path(self) -> tuple[str, ...]:
        """Return the parts of the key; indices of lists are numbers among them."""
        return tuple(self.key.replace("/", ".").split("."))

    @property
    def deletes(self) -> bool:
        """Whether it takes something away."""
        return bool(self.parsed.is_delete())

    @property
    def is_sweep(self) -> bool:
        """Whether it stands for several values."""
        return bool(self.parsed.is_sweep_override())

    def line(self) -> str:
        """Return it as Hydra is to take it: a plain value adds or replaces (`++`)."""
        given = str(self.parsed.input_line)
        if self.is_group or given[0] in "+~":
            return given
        return f"++{given}"

    def lines(self) -> Iterator[str]:
        """Yield one line for each value of a sweep, as Hydra expands it."""
        from hydra.errors import HydraException

        prefix = "" if self.is_group else "++"
        try:
            for value in self.parsed.sweep_string_iterator():
                yield f"{prefix}{self.key}={value}"
        except HydraException:
            raise wrong("give each value: a,b,c or range(1,4)", self.text) from None


def read_overrides(texts: Sequence[str], groups: Collection[str]) -> list[Override]:
    """Parse overrides; raises ConfigError for what the grammar does not know."""
    return [_read(text, groups) for text in texts]


def looks_like_file(argument: str) -> bool:
    """Whether an argument names a spec's file rather than an override."""
    if argument[:1] in "+~":
        return False
    return "=" not in argument or (
        argument.endswith((".json", ".yaml", ".yml")) and Path(argument).exists()
    )


def _read(text: str, groups: Collection[str]) -> Override:
    parsed = _parsed(text)
    key = str(parsed.key_or_group)
    if key.startswith(("hydra.", "hydra/")):
        raise wrong(f"`{text}`: a spec has no such key, and nothing is run by it: leave it out")
    return Override(text, parsed, is_group=key in groups and parsed.package is None)


def _parsed(text: str) -> Any:
    from hydra.errors import HydraException

    key, equals, value = text.partition("=")
    key = _INDEX.sub(r".\1", key)
    try:
        return _parser().parse_override(key + equals + value)
    except HydraException:
        pass
    try:
        return _parser().parse_override(f"{key}{equals}{_quoted(value)}")
    except HydraException:
        raise wrong(
            f"`{text}` is no override: give key=value, +key=value or ~key; a value with brackets, "
            f"commas or quotes in its text needs quotes: {key or 'key'}='\"…\"'"
        ) from None


def _quoted(value: str) -> str:
    """Put quotes around what the grammar knows no letters for: words that are not ASCII, say."""
    if not _STRUCTURE & set(value):
        return _in_quotes(value)
    return _WORDS.sub(lambda word: _word(word[0]), value)


def _word(word: str) -> str:
    if word[0] in "'\"" or word.isascii():
        return word
    bare = word.strip()
    return word.replace(bare, _in_quotes(bare))


def _in_quotes(value: str) -> str:
    """Quoted as the grammar has it: backslashes count only before a quote."""
    ends = len(value) - len(value.rstrip("\\"))
    return "'" + value.replace("'", "\\'") + "\\" * ends + "'"


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()
