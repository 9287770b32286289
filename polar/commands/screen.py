"""The terminal that the subcommands write to; no word of others moves its cursor or turns it."""

import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

WIDE = 200  # columns where nobody looks: programs must not get cut words

# Control characters, marks that turn the direction of writing, and separators of lines.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return the text with what a terminal would obey written out, such as `\x1b`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Screen(Console):
    """A console that shows what it is given, whatever that holds."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render; only the console's own commands to the terminal stay commands."""
        for segment in super().render(renderable, options):
            if segment.control or not _UNSAFE.search(segment.text):
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def _screen(**options: Any) -> Screen:
    return Screen(highlight=False, **options)


out = _screen(width=None if sys.stdout.isatty() else WIDE)
err = _screen(stderr=True)


def keep_stdout() -> None:
    """Have all words go to stderr from now on: on stdout one JSON document stands alone."""
    out.file = sys.stderr


def fail(message: str, code: int = 1) -> SystemExit:
    """Say what went wrong and return the exception that ends the command."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return SystemExit(code)
