"""Subcommands that are imported when they are called: the table alone makes `polar --help`.

A command costs what it imports; the list of all must not cost the sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Row:
    """A subcommand: its name, `module:attribute` of its function or Typer, and its line of help.

    The line is the first paragraph of what is loaded; a test compares them.
    """

    name: str
    where: str
    help: str
    panel: str

    def load(self) -> Any:
        """Import and return the command that is to run."""
        module, _, attribute = self.where.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False)
            alone.command(self.name)(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = self.name
        return command

    def stub(self) -> TyperCommand:
        """Return what stands for it in lists."""
        return TyperCommand(self.name, help=self.help, rich_help_panel=self.panel)


class LazyGroup(TyperGroup):
    """A group whose commands are the rows of `table`; those registered in the usual way follow."""

    table: ClassVar[dict[str, Row]] = {}

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        stubs: dict[str, Any] = {row.name: row.stub() for row in self.table.values()}
        super().__init__(commands={**stubs, **(commands or {})}, **attributes)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by their panels, each with its whole line."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            panel = command.rich_help_panel or "Commands"
            panels.setdefault(panel, []).append((name, command.help or ""))
        for panel, lines in panels.items():
            with formatter.section(panel):
                formatter.write_dl(lines)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command itself for what is called or completed."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.table and isinstance(command, TyperCommand):
            command = self.table[name].load()
        return name, command, rest


def group_of(rows: Iterable[Row]) -> type[LazyGroup]:
    """Return the class of a group with these rows."""
    return type("Commands", (LazyGroup,), {"table": {row.name: row for row in rows}})
