"""The terminal that the subcommands write to."""

from rich.console import Console
from rich.markup import escape

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def fail(message: str, code: int = 1) -> SystemExit:
    """Say what went wrong and return the exception that ends the command."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return SystemExit(code)
