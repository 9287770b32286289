"""Writes `docs/cli.md` from the commands themselves: `python -m polar.reference > docs/cli.md`."""

import inspect
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup

from polar.cli import ROWS

HEAD = """# The command line

Written by `make docs` from the commands themselves; `polar COMMAND --help` says the same. Commands
that talk to a service use `POLAR_URL` and `POLAR_API_KEY`, or the stack that runs in `POLAR_HOME`.
`polar --install-completion` has the shell complete commands and options.

With `--json` one JSON document comes, or one a line where it is a stream (`watch`, `replay`,
`events`, `logs`).

| exit code | meaning |
|---|---|
| 0 | done; `watch`: the job succeeded |
| 1 | something failed here; `status`: no stack runs |
| 2 | wrong usage, or a file that is no spec |
| 3 | `watch`: the job failed |
| 4 | `watch`: the job was cancelled |
| 5 | `watch`: the job is paused |
| 6 | the service refused: the text says what is wrong |
| 7 | no service answers, or it is unwell |
| 8 | what was waited for did not happen in time |

`train`, `verify`, `backup` and `restore` say how their own work ended; what they add stands in
their help.
"""


def page() -> str:
    """Return the text of the page."""
    parts = [HEAD]
    panel = ""
    for row in sorted(ROWS, key=lambda row: [each.panel for each in ROWS].index(row.panel)):
        if row.panel != panel:
            panel = row.panel
            parts.append(f"## {panel}\n")
        parts += _described(f"polar {row.name}", row.load())
    return "\n".join(parts)


def _described(name: str, command: Any) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        yield f"### `{name}`\n\n{_help(command)}\n"
        for inner, each in command.commands.items():
            yield from _described(f"{name} {inner}", each)
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words = " ".join([name, *(_argument(each) for each in arguments)])
    yield f"### `{words}`\n\n{_help(command)}\n"
    lines = [_option(each) for each in command.params if each.name != "help"]
    if lines:
        yield "\n".join(lines) + "\n"


def _help(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split())


def _argument(argument: Any) -> str:
    name = str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _option(each: Any) -> str:
    is_argument = each.param_type_name == "argument"
    name = str(each.name).upper() if is_argument else ", ".join([*each.opts, *each.secondary_opts])
    return f"- `{name}` {each.help or ''}".rstrip()


if __name__ == "__main__":
    print(page(), end="")
