"""What the documents say can be followed: every link leads somewhere, every command is one."""

import re
import shlex
from argparse import ArgumentError
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main

from polar.cli import app
from tests.services import ROOT
from trainer_core.__main__ import _parser

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
COMMAND = re.compile(
    r"(?:^|(?<=[\s(]))(?:\S*bin/)?(?:python3?\s+-m\s+)?(polar|trainer_core|make)\s+([^|;&>)#`\n]+)"
)
INLINE = re.compile(r"`(?:\.venv/bin/)?(polar|make) ([a-z][a-z-]*)[^`]*`")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
POLAR = typer.main.get_command(app)


def _anchors(page: Path) -> set[str]:
    """The places of a page, as GitHub names them."""
    outside = BLOCK.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads)
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {link}"


def _commands(page: Path) -> Iterator[tuple[str, str]]:
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind not in ("console", "bash"):
            continue
        joined = block.replace("\\\n", " ")
        lines = [line.removeprefix("$ ") for line in joined.splitlines()]
        if kind == "console":
            lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
        for line in lines:
            yield from COMMAND.findall(re.sub(r"(^|\s)#.*", "", line))


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_is_one(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # what there was
        return
    for program, text in _commands(page):
        words = shlex.split(text)
        try:
            _understood(program, words)
        except Exception as error:
            raise AssertionError(f"{page.name}: {program} {text}: {error}") from error
    for program, word in INLINE.findall(page.read_text(encoding="utf-8")):
        known = TARGETS if program == "make" else _subcommands()
        assert word in known, f"{page.name}: `{program} {word}`"


def _subcommands() -> set[str]:
    assert isinstance(POLAR, typer.core.TyperGroup)
    return set(POLAR.list_commands(_context()))


def _context() -> typer.Context:
    return typer.Context(POLAR)


def _understood(program: str, words: list[str]) -> None:
    """Raise what the program would say of words that it does not know."""
    if program == "make":
        asked = {word for word in words if "=" not in word}
        assert asked <= TARGETS, asked - TARGETS
    elif program == "trainer_core":
        try:
            _parser().parse_args(words)
        except (SystemExit, ArgumentError) as error:
            raise ValueError("argparse refuses it") from error
    else:
        _polar(words)


def _polar(words: list[str]) -> None:
    command, context = POLAR, _context()
    rest = words
    while hasattr(command, "resolve_command") and rest and not rest[0].startswith("-"):
        name, command, rest = command.resolve_command(context, rest)
        context = typer.Context(command, parent=context, info_name=name)
    command.make_parser(context).parse_args(rest)
