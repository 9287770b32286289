"""What commands that take a spec share: its words, and what is said of wrong ones."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from polar.commands.screen import fail
from polar.commands.service import read_spec
from polar.config import Composed, ConfigError, Places, compose_spec

BAD_SPEC = 64
_T = TypeVar("_T")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SPEC] [OVERRIDE]...",
        help="A spec's file (JSON or YAML), options (`task=sft`) and overrides "
        "(`training.learning_rate=1e-4`).",
        show_default=False,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option(help="A folder with your own options; default: `conf`, if it is there."),
]
ConfigName = Annotated[
    str | None, typer.Option(help="A configuration of that folder to start from.")
]
Show = Annotated[
    str | None,
    typer.Option("--cfg", metavar="job", help="Print the composed spec and do nothing."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Say it as JSON.")]


def composed(words: Sequence[str] | None, places: Places, *, as_json: bool = False) -> Composed:
    """Compose a spec; what is wrong with it ends the command with exit code 64."""
    return or_told(lambda: compose_spec(words or [], places), as_json=as_json)


def job_of(words: Sequence[str] | None, places: Places) -> dict[str, Any]:
    """The body of a job: a JSON file alone as it is written, for the service to check; else what
    options, file and overrides compose."""
    words = words or []
    if len(words) == 1 and words[0].endswith(".json") and places == Places():
        return read_spec(Path(words[0]))
    return composed(words, places).document


def or_told(compose: Callable[[], _T], *, as_json: bool) -> _T:
    """Return what `compose` makes, or end the command with its problems."""
    try:
        return compose()
    except ConfigError as error:
        if not as_json:
            raise fail(str(error), BAD_SPEC) from None
        problems = [vars(problem) for problem in error.problems]
        say({"type": "refused", "status": "invalid_spec", "problems": problems})
        raise SystemExit(BAD_SPEC) from None


def show(wanted: str, documents: Sequence[dict[str, Any]]) -> None:
    """Print composed documents, as files that can be given again."""
    if wanted != "job":
        raise fail(f"--cfg {wanted}: a composed spec is printed by --cfg job", BAD_SPEC)
    for document in documents:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def say(document: dict[str, Any]) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()
