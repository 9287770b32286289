"""`polar api`: any call of the API; and `polar health`."""

import json
from typing import Annotated, Any

import typer

from polar.commands.screen import fail, visible
from polar.commands.service import AsJson, Exit, assignments, print_json, read_stdin, service


def api(
    method: Annotated[str, typer.Argument(help="GET, POST, PUT, PATCH or DELETE.")],
    path: Annotated[str, typer.Argument(help="Such as /jobs.")],
    query: Annotated[
        list[str] | None, typer.Option("--query", "-q", help="name=value; repeatable.")
    ] = None,
    body: Annotated[str, typer.Option("--body", "-d", help="JSON; - reads it.")] = "",
) -> None:
    """Call the API and print what it answers, for what has no command of its own."""
    text = read_stdin() if body == "-" else body
    with service() as client:
        said = client.request(method, path, json=_json(text), query=assignments(query or []))
    if isinstance(said, str):
        print("\n".join(map(visible, said.splitlines())))
    elif said is not None:
        print_json(said)


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise fail(f"--body is not JSON: {error}", Exit.USAGE) from None


def health(*, as_json: AsJson = False) -> None:
    """Say whether the service lives and can take jobs; exit code 7 when not."""
    with service() as client:
        client.service.health()
        ready = client.service.ready()
    if as_json:
        print_json(ready)
    else:
        waiting = ", ".join(ready.degraded)
        print(f"ready{', without ' + waiting if waiting else ''}")
