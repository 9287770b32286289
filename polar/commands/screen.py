"""The terminal that the subcommands write to."""

import sys

from rich.console import Console
from rich.markup import escape

WIDE = 200  # columns where nobody looks: programs must not get cut words

out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False)


def fail(message: str, code: int = 1) -> SystemExit:
    """Say what went wrong and return the exception that ends the command."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return SystemExit(code)
