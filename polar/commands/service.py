"""What commands that talk to a service share: the connection, exit codes, JSON, specs."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from polar.commands.screen import fail
from polar.connection import connect
from polar.sdk.client import Client
from polar.sdk.errors import (
    ApiError,
    ClientError,
    NoService,
    ServerError,
    Unreachable,
    Unsendable,
    Waited,
)
from trainer_core.json_words import json_problem, parse_json


class Exit(IntEnum):
    """How a command ended, for scripts; `docs/cli.md` has the table."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    FAILED = 3
    CANCELLED = 4
    PAUSED = 5
    REFUSED = 6
    UNREACHABLE = 7
    TIMED_OUT = 8


OUTCOMES = {
    "succeeded": Exit.DONE,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
    "paused": Exit.PAUSED,
}
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
JobId = Annotated[str, typer.Argument(help="The job's id, as `polar list` shows it.")]
SpecFile = Annotated[Path, typer.Argument(help="A JobSpec as a JSON file.", exists=True)]


@contextmanager
def service() -> Iterator[Client]:
    """Connect; what the service refuses ends the command with its message and a code."""
    try:
        with connect() as client:
            yield client
    except ClientError as error:
        raise fail(str(error), code_of(error)) from None


def code_of(error: ClientError) -> Exit:
    """Return the exit code for what went wrong."""
    if isinstance(error, (NoService, Unreachable, ServerError)):
        return Exit.UNREACHABLE
    if isinstance(error, ApiError):
        return Exit.REFUSED
    if isinstance(error, Unsendable):
        return Exit.USAGE
    return Exit.TIMED_OUT if isinstance(error, Waited) else Exit.ERROR


def plain(value: Any) -> Any:
    """Return an answer as what JSON can hold."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def print_json(value: Any) -> None:
    """Print one JSON document."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=2)
    # Half a character (a lone surrogate) may stand in a name.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


def tell(words: str, *, as_json: bool, **facts: Any) -> None:
    """Print what was done, in words or as JSON."""
    if as_json:
        print_json(facts)
    else:
        print(words)


def print_line(value: Any) -> None:
    """Print one line of a stream of JSON documents, at once."""
    text = json.dumps(plain(value), ensure_ascii=False)
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def read_spec(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; ends the command when there is none."""
    try:
        body = parse_json(path.read_bytes())
    except OSError as error:
        raise fail(f"{path}: {error.strerror}", Exit.USAGE) from None
    except (ValueError, RecursionError) as error:
        raise fail(f"{path} is not JSON: {json_problem(error)}", Exit.USAGE) from None
    if not isinstance(body, dict):
        raise fail(f"{path} must hold a JSON object", Exit.USAGE)
    return body


def assignments(pairs: list[str]) -> dict[str, Any]:
    """Return `a.b=1` as `{"a": {"b": 1}}`; values are JSON, or text that is none."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise fail(f"{pair!r}: write it as name=value, such as training.max_steps=20", 2)
        *outer, last = name.split(".")
        place = found
        for each in outer:
            place = place.setdefault(each, {})
            if not isinstance(place, dict):
                raise fail(f"{pair!r}: {each} has a value already", Exit.USAGE)
        place[last] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_stdin() -> str:
    """Return what stands on standard input; ends the command when that is no UTF-8."""
    try:
        text = sys.stdin.read()
        text.encode()  # without a locale Python reads what is no UTF-8 as halves of characters
    except UnicodeError as error:
        place = f"byte {error.start} of " if isinstance(error, UnicodeDecodeError) else ""
        why = f"{place}standard input is not UTF-8: give text in UTF-8"
        raise fail(why, Exit.USAGE) from None
    return text
