"""`polar try`: chat with a model, have it label texts and images, compare texts by it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from polar.asking import Model, NoAnswer
from polar.commands.screen import fail, out, visible
from polar.commands.service import AsJson, Exit, print_line, read_stdin, service
from polar.manifest import Mismatch
from polar.stack.home import default_home
from polar.tried import NoModel, fetch_job, fetch_version, is_job, local_folder

_SHOWN = 5  # labels


def try_model(
    model: Annotated[
        str, typer.Argument(help="A published model (`name` or `name:2`), a job's id, or a folder.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="What to say, label or compare (two texts); an image by its path. Without: from "
            "stdin or, at a terminal, one after the other.",
            show_default=False,
        ),
    ] = None,
    *,
    temperature: Annotated[
        float, typer.Option(min=0, max=10, help="Of a chat; 0: always the likeliest token.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, max=8192, help="Of an answer.")] = 256,
    base: Annotated[str | None, typer.Option(help="Where an adapter's base lies now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Chat with a model, have it label texts or images, or compare two texts by it."""
    options = {"temperature": temperature, "max_tokens": max_tokens}
    try:
        with Model(_found(model), base) as loaded:
            _Trial(loaded, options, as_json=as_json).run(texts or [])
    except (NoAnswer, NoModel, Mismatch, OSError) as error:
        raise fail(str(error), Exit.ERROR) from None


def _found(given: str) -> Path:
    folder = local_folder(given)
    if folder is not None:
        return folder
    if Path(given).is_dir():
        raise NoModel(
            f"{given} holds no model: a run's folder has it in `model`, once it has ended"
        )
    cache = default_home() / "tried"
    with service() as client:
        return (fetch_job if is_job(given) else fetch_version)(client, given, cache)


class _Trial:
    """What is asked of one model, in turns."""

    def __init__(self, model: Model, options: dict[str, Any], *, as_json: bool) -> None:
        self._model, self._options, self._as_json = model, options, as_json
        self._talk: list[dict[str, str]] = []

    def run(self, texts: list[str]) -> None:
        """Answer the texts, or whatever is typed until the end of input."""
        if self._model.kind == "embed":
            self._compare(texts or read_stdin().splitlines())
        elif texts:
            self._turn(" ".join(texts))
        elif not sys.stdin.isatty():
            self._turn(read_stdin().strip())
        else:
            self._converse()

    def _converse(self) -> None:
        out.print(f"[dim]{self._model.kind}; an empty line or Ctrl-D ends it[/]")
        while text := _typed():
            self._turn(text)

    def _compare(self, texts: list[str]) -> None:
        if len(texts) != 2:
            raise NoAnswer("this model compares two texts: give two, each in quotes")
        self._say(self._only({"texts": texts}))

    def _turn(self, text: str) -> None:
        if self._model.kind == "chat":
            self._chat(text)
        else:
            field = "image" if self._model.kind == "images" else "text"
            self._say(self._only({field: text}))

    def _chat(self, text: str) -> None:
        self._talk.append({"role": "user", "content": text})
        answer: dict[str, Any] = {}
        for answer in self._model.ask({"messages": self._talk, **self._options}):
            if "piece" in answer and not self._as_json:
                sys.stdout.write(visible(answer["piece"]))
                sys.stdout.flush()
        self._talk.append({"role": "assistant", "content": answer["text"]})
        if self._as_json:
            print_line(answer)
        else:
            sys.stdout.write("\n")

    def _only(self, request: dict[str, Any]) -> dict[str, Any]:
        return list(self._model.ask(request))[-1]

    def _say(self, answer: dict[str, Any]) -> None:
        if self._as_json:
            print_line(answer)
        elif "labels" in answer:
            for each in answer["labels"][:_SHOWN]:
                out.print(f"{each['score']:6.1%}  {escape(str(each['label']))}")
        else:
            out.print(f"{next(iter(answer.values())):.4f}")


def _typed() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
