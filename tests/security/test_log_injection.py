"""What people write does not become what a log, a terminal or a header says by itself."""

import io
import json
import logging
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from app.journal import JsonLines
from polar.commands import watching
from polar.commands.screen import Screen, visible
from polar.follow import follow
from polar.sse import Frame
from tests.app.server import Api
from tests.services import wait_until

NASTY = [
    'line\nbreak {"level": "error", "message": "forged"}',
    "carriage\rreturn",
    "\x1b[2J\x1b]0;title\x07\x1b[31mred",
    "\x9b31mred",
    "\u202egpj.exe\u202c and \u2066isolated\u2069",
    "separate\u2028lines\u2029here",
    "\ufeffmark \u200f \x7f \x08\x08\x08",
    "half \ud800 a character",
    "[bold red]markup[/] [/] [link=http://x]y",
]
OBEYED = ("\n", "\r", "\x1b", "\x9b", "\x7f", "\u202e", "\u2028", "\u2066", "\ufeff", "\x08")


@pytest.mark.parametrize("text", NASTY)
def test_a_log_line_stays_one_line_that_says_what_was_said(text: str) -> None:
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "said %s", (text,), None)
    record.fields = {"path": text}
    line = JsonLines().format(record)
    assert not any(sign in line for sign in OBEYED)
    line.encode()  # a half of a character would end the handler
    assert json.loads(line)["message"] == f"said {text}"
    assert json.loads(line)["path"] == text


def test_a_request_cannot_forge_a_log_line(api: Api) -> None:
    forged = '/x%0A{"level":"error","message":"forged"}%1B[2J%E2%80%AE'
    api.client.get(forged, headers={"X-Request-ID": "forge-1"})

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in api.log.read_text().split("\n")[:-1]]
        return [line for line in lines if line.get("request_id") == "forge-1"]

    [line] = wait_until(found)
    assert line["level"] == "info"
    assert line["path"] == '/x\n{"level":"error","message":"forged"}\x1b[2J\u202e'
    raw = next(line for line in api.log.read_text().split("\n") if "forge-1" in line)
    assert "\x1b" not in raw
    assert "\u202e" not in raw


@pytest.mark.parametrize("text", NASTY)
def test_a_terminal_obeys_no_word_of_a_job(text: str) -> None:
    told = [
        Frame("1", {"type": "log", "data": {"level": "info", "message": text}}),
        Frame(None, {"type": "end", "status": "succeeded", "last_seq": 1}),
    ]
    for is_terminal in (False, True):
        screen = Screen(file=io.StringIO(), width=200, force_terminal=is_terminal)
        follow("job_1", told, screen)
        assert isinstance(screen.file, io.StringIO)
        shown = screen.file.getvalue()
        assert "\x1b]0;" not in shown
        assert "\x1b[31m" not in shown
        assert "\x1b[2J" not in shown
        assert not any(
            sign in shown for sign in ("\x9b", "\u202e", "\u2028", "\ufeff", "\ud800", "\x08")
        )


def test_names_and_messages_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    class Service:
        @property
        def jobs(self) -> "Service":
            return self

        def get(self, _: str) -> SimpleNamespace:
            return SimpleNamespace(status="failed", message="[/] failed \x1b[2J")

        def events(self, _: str, after: int) -> list[Frame]:
            assert after == 0
            return [Frame(None, {"type": "end", "status": "failed", "last_seq": 1})]

        def __enter__(self) -> "Service":
            return self

        def __exit__(self, *_: object) -> None:
            return None

    screen = Screen(file=io.StringIO(), width=200)
    monkeypatch.setattr(watching, "service", Service)
    monkeypatch.setattr(watching, "out", screen)
    with pytest.raises(SystemExit):
        watching.watch("job_1")
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().strip().endswith("failed: [/] failed \\x1b[2J")


def test_lines_and_tabs_are_text() -> None:
    assert visible("a\n\tb 한글 – é 🙂") == "a\n\tb 한글 – é 🙂"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "é", "x" * 129, "a b"])
def test_a_header_that_comes_back_is_plain(api: Api, value: str) -> None:
    try:
        answer = api.client.get("/jobs", headers={"X-Request-ID": value.encode()})
    except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
        return  # it never left
    assert "x-injected" not in answer.headers
    assert value not in answer.headers.get("x-request-id", "")
