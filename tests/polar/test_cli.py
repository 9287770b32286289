"""The command line as a whole: one table of commands, light to start, completed by shells."""

import inspect
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from polar.cli import ROWS, app
from polar.lazy import Row
from tests.services import ROOT


def polar(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "polar", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "PYTHONUTF8": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_table_says_what_the_commands_say(row: Row) -> None:
    first = inspect.cleandoc(row.load().help or "").split("\n\n")[0].replace("\n", " ")
    assert row.help == first


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, with their names."""
    if isinstance(command, TyperGroup):
        for inner, each in command.commands.items():
            yield from leaves(f"{name} {inner}", each)
    else:
        yield name, command


def test_each_command_has_json_for_programs() -> None:
    """`polar api` prints what the service answers, which is JSON."""
    all_of_them = [leaf for row in ROWS for leaf in leaves(row.name, row.load())]
    without = [n for n, c in all_of_them if not any("--json" in p.opts for p in c.params)]
    assert without == ["api"]


def test_help_lists_each_command_and_imports_none() -> None:
    program = (
        "import json, sys\nfrom polar.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('httpx', 'pydantic', 'psycopg', 'polar.sdk.client', 'polar.commands')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr.strip() == "[]"
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {row.name for row in ROWS} <= listed


def test_shells_complete_commands_and_options() -> None:
    asked = {"_POLAR_COMPLETE": "complete_bash"}
    found = polar(**asked, COMP_WORDS="polar res", COMP_CWORD="1").stdout.split()
    assert {"restore", "resume"} <= set(found)
    found = polar(**asked, COMP_WORDS="polar worker dr", COMP_CWORD="2").stdout.split()
    assert found == ["drain"]


def test_a_wrong_command_is_told_with_the_nearest() -> None:
    done = polar("wacth")
    assert done.returncode == 2
    assert "Did you mean 'watch'" in done.stderr


JOB = "job_01KBEHN0K0R5HZ8Q6JY6Q1V1Z3"
ODD_INPUT = [
    (["submit", "deep.json"], b"", "it is nested too deeply"),
    (["plan", "nan.json"], b"", "`a` is nan, which JSON has no form for"),
    (["sweeps", "submit", "twice.json"], b"", "'a' is named twice in one object"),
    (["presets", "set", "x", "latin.json"], b"", "byte 6 is not UTF-8: save it as UTF-8"),
    (
        ["clone", JOB, "training.learning_rate=NaN"],
        b"",
        "training.learning_rate` is nan",
    ),
    (["edit", JOB, "--name", "\udcff"], b"", "`name` is"),
    (["secrets", "set", "x"], b"\xff", "byte 0 of standard input is not UTF-8"),
    (["api", "POST", "/jobs", "-d", "-"], b"\xff", "byte 0 of standard input is not UTF-8"),
    (["api", "POST", "/jobs", "-d", "[" * 100_000], b"", "--body is not JSON"),
    (["submit", "fine.json", "--idempotency-key", "가"], b"", "the header Idempotency-Key"),
]


@pytest.mark.parametrize(
    ("words", "stdin", "told"), ODD_INPUT, ids=lambda value: str(value)[:30].replace(JOB, "")
)
def test_input_that_cannot_be_sent_is_wrong_usage(
    words: list[str],
    stdin: bytes,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before a connection is made: nothing answers at this address."""
    for name, content in {
        "deep": b'{"a":' * 100_000,
        "nan": b'{"a": NaN}',
        "twice": b'{"a": 1, "a": 2}',
        "latin": b'{"a":"\xe9"}',
        "fine": b"{}",
    }.items():
        (tmp_path / f"{name}.json").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    with pytest.raises(SystemExit) as end:
        app(words, prog_name="polar")
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert told in said.err


def test_a_file_that_cannot_be_read_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory of a process is a file, and its first page is no one's."""
    monkeypatch.setenv("POLAR_URL", "http://127.0.0.1:1")
    with pytest.raises(SystemExit) as end:
        app(["datasets", "add", "/proc/self/mem"], prog_name="polar")
    assert end.value.code == 1
    assert "/proc/self/mem cannot be read, give another file" in capsys.readouterr().err


def test_rows_are_functions_or_groups() -> None:
    for row in ROWS:
        assert isinstance(row.load(), (typer.core.TyperCommand, typer.core.TyperGroup))
