"""Tails and redaction: what is read, in which portions, and what never leaves."""

import base64
import json
from pathlib import Path

import pytest

from trainer_core.events import EventWriter
from worker import carrier
from worker.carrier import BrokenEvents, EventTail, LogTail
from worker.redact import MASK, Redactor
from worker.telemetry import parse_line

SECRET = "hf_0123456789"


def test_b31_secrets_are_masked_by_exact_value_wherever_they_stand() -> None:
    redactor = Redactor([SECRET, "short", f"{SECRET}-and-more"])
    data = {"message": f"token={SECRET}", "list": [f"{SECRET}-and-more", 3, None], SECRET: True}
    assert redactor.data(data) == {
        "message": f"token={MASK}",
        "list": [MASK, 3, None],
        MASK: True,
    }
    # Below eight characters plain words would be masked.
    assert redactor.text("a short text") == "a short text"


def test_b31_space_around_a_secret_and_breaks_in_it_hide_nothing() -> None:
    redactor = Redactor([f" {SECRET}\n", "-----BEGIN KEY-----\nMIIBVgIBADANBg\n"])
    assert redactor.text(f"Bearer {SECRET}!") == f"Bearer {MASK}!"
    assert redactor.text("read MIIBVgIBADANBg") == f"read {MASK}"


def test_what_postgres_cannot_keep_is_left_out() -> None:
    assert Redactor([]).text("a\0b\ud800c") == "ab?c"


def test_events_are_read_whole_and_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "BATCH", 2)
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    for step in (1, 2, 3):
        writer.emit("log", level="info", message=f"{SECRET} {step}")
    with path.open("ab") as file:
        file.write(b'{"n": 4, "ti')  # torn: still being written
    tail = EventTail(path, Redactor([SECRET]))
    first = tail.read()
    assert [event.n for event, _ in first] == [1, 2]
    assert first[0][0].data["message"] == f"{MASK} 1"
    tail.offset = first[-1][1]
    assert [event.n for event, _ in tail.read()] == [3]


def test_what_is_not_an_event_is_an_error_after_what_is(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventWriter(path).emit("phase", phase="loading")
    with path.open("ab") as file:
        file.write(b"this is no event\n")
    tail = EventTail(path, Redactor([]))
    [(event, end)] = tail.read()
    assert event.n == 1
    tail.offset = end
    with pytest.raises(BrokenEvents):
        tail.read()


def test_long_texts_are_cut(tmp_path: Path) -> None:
    EventWriter(tmp_path / "e").emit("log", level="info", message="x" * 100_000)
    [(event, _)] = EventTail(tmp_path / "e", Redactor([])).read()
    assert event.data["message"].endswith("(100000 characters)")
    assert len(event.data["message"]) < 9_000


def read_all(tail: LogTail) -> list[str]:
    lines, offset = tail.read(final=True)
    tail.done(offset)
    return lines


def test_lines_of_output(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(f"one {SECRET}\r\n\n 10%|#\r 90%|###\nkey \xff\nunfin".encode("latin-1"))
    tail = LogTail(path, Redactor([SECRET]))
    lines, offset = tail.read()
    # A progress bar counts as its last state; the unfinished line waits for its end.
    assert lines == [f"one {MASK}", " 90%|###", "key \ufffd"]
    tail.done(offset)
    assert read_all(tail) == ["unfin"]
    assert read_all(tail) == []


def test_a_flood_of_output_is_limited_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("".join(f"line {n}\n" for n in range(20_000)))
    tail = LogTail(path, Redactor([]))
    lines: list[str] = []
    while portion := read_all(tail):
        lines += portion
    assert tail.offset == path.stat().st_size
    kept = [line for line in lines if line.startswith("line")]
    left_out = sum(int(line.split()[1]) for line in lines if line.startswith("…"))
    assert len(kept) + left_out == 20_000
    assert len(kept) < 2 * carrier.LINE_BURST


def test_lines_that_could_not_be_stored_come_again_and_are_not_counted_as_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_LOG_EVERY", 0.0)
    path = tmp_path / "output.log"
    written = [f"line {n}" for n in range(600)]
    tail = LogTail(path, Redactor([]))
    for n in range(0, 600, 20):  # the database is away: every batch is read, none is stored
        with path.open("a") as file:
            file.write("".join(f"{line}\n" for line in written[n : n + 20]))
        lines, _ = tail.read()
        assert lines == written[: n + 20]
    assert read_all(tail) == written


def test_b19_the_last_lines_survive_a_flood(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("".join(f"line {n}\n" for n in range(100_000)) + "ValueError: the reason\n")
    tail = LogTail(path, Redactor([]))
    lines: list[str] = []
    while portion := read_all(tail):
        lines += portion
    assert tail.offset == path.stat().st_size
    assert lines[-1] == "ValueError: the reason"
    assert lines[-carrier.LAST_LINES :][0] == f"line {100_000 - carrier.LAST_LINES + 1}"


def test_nvidia_smi_fields_that_it_cannot_tell_are_left_out() -> None:
    assert parse_line("0, 37, 1024, 81920") == {
        "index": 0,
        "utilization_percent": 37,
        "memory_used_mb": 1024,
        "memory_total_mb": 81920,
    }
    assert parse_line("1, [N/A], 5, 6") == {"index": 1, "memory_used_mb": 5, "memory_total_mb": 6}


AWKWARD = "a/b+c= 한0123"
FORMS = {
    "percent": ("https://me:a%2Fb%2Bc%3D%20%ED%95%9C0123@host", f"https://me:{MASK}@host"),
    "percent, lower case": ("?token=a%2fb%2bc%3d%20%ed%95%9c0123", f"?token={MASK}"),
    "path": ("/a/b%2Bc%3D%20%ED%95%9C0123", f"/{MASK}"),
    "form": ("token=a%2Fb%2Bc%3D+%ED%95%9C0123&x=1", f"token={MASK}&x=1"),
    "json": (json.dumps({"token": AWKWARD}), f'{{"token": "{MASK}"}}'),
    "hexadecimal": (AWKWARD.encode().hex(), MASK),
    "hexadecimal, upper case": (AWKWARD.encode().hex().upper(), MASK),
}


@pytest.mark.parametrize("form", FORMS)
def test_b31_secrets_are_found_in_the_forms_that_programs_give_them(form: str) -> None:
    given, expected = FORMS[form]
    assert Redactor([AWKWARD]).text(f"before {given} after") == f"before {expected} after"


@pytest.mark.parametrize("alphabet", [b"+/", b"-_"])
@pytest.mark.parametrize("before", ["", "u:", "me:", "user:"])
@pytest.mark.parametrize("after", ["", "\n", "!!", "???"])
def test_b31_secrets_are_found_within_base64(alphabet: bytes, before: str, after: str) -> None:
    """What is left are the neighbours, and at most a character of base64 with bits of it."""
    coded = base64.b64encode(f"{before}{AWKWARD}{after}".encode(), altchars=alphabet).decode()
    text = Redactor([AWKWARD]).text(coded)
    left, mask, right = text.partition(MASK)
    assert mask
    assert len(left) <= -(-len(before) * 8 // 6)
    assert len(right.rstrip("=")) <= -(-len(after) * 8 // 6) + 1


def test_b31_both_halves_of_a_pair_are_secret() -> None:
    redactor = Redactor(["AKIA01234567:wJalrXUtnFEMI"])
    assert redactor.text("key AKIA01234567 refused, wJalrXUtnFEMI") == f"key {MASK} refused, {MASK}"


def test_b31_a_secret_that_is_broken_over_lines_is_masked_in_each() -> None:
    redactor = Redactor([SECRET])
    assert redactor.lines(["the token hf_01", "    234", "56789 is wrong"]) == [
        f"the token {MASK}",
        f"    {MASK}",
        f"{MASK} is wrong",
    ]
    assert redactor.text("token hf_0123\n456789!") == f"token {MASK}\n{MASK}!"
    assert redactor.lines(["hf_01", "and no more", SECRET]) == ["hf_01", "and no more", MASK]


def test_b31_a_secret_that_comes_in_two_writes_is_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_LOG_EVERY", 0.0)
    path = tmp_path / "output.log"
    tail = LogTail(path, Redactor([SECRET]))

    def write(text: str) -> list[str]:
        with path.open("a") as file:
            file.write(text)
        lines, offset = tail.read()
        tail.done(offset)
        return lines

    assert write("one\ntoken hf_0123") == ["one"]  # its line has no end yet
    assert write("45") == []
    assert write("6789\nhf_0123\n") == [f"token {MASK}"]  # the second may go on in the next line
    assert write("456789 there\n") == [MASK, f"{MASK} there"]
    assert write("token hf_0123\n") == []
    assert write("nothing of it\n") == ["token hf_0123", "nothing of it"]
    # Too little to be held back: the rest is masked, and three letters say nothing.
    assert write("hf_\n") == ["hf_"]
    assert write("0123456789\n") == [MASK]


def test_b31_an_endless_line_is_not_cut_within_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "_LOG_EVERY", 0.0)
    size = carrier.LONGEST_TEXT * 32
    path = tmp_path / "output.log"
    path.write_text("x" * (size - 6) + SECRET + "y" * 20)
    tail = LogTail(path, Redactor([SECRET]))
    tail.done(tail.read()[1])
    assert tail.offset == size - 6
    [line], _ = tail.read(final=True)
    assert line == MASK + "y" * 20
