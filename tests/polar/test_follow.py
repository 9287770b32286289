"""What people see of a job: plain lines without a terminal, a drawn view with one."""

import io
import json

from rich.console import Console

from polar.follow import Seen, clock, drawn, follow, sparkline
from polar.sse import Frame
from tests.services import ROOT


def frame(kind: str, **data: object) -> Frame:
    return Frame("1", {"type": kind, "data": data})


STORY = [
    frame("status", status="running", phase="training"),
    frame("progress", step=1, total_steps=2, eta_seconds=61, tokens_per_second=1200),
    frame("metrics", step=1, loss=4.0),
    frame("log", level="info", message="[half way]"),
    frame("metrics", step=2, loss=2.0),
    frame("metrics", step=2, eval_loss=1.5),
    frame("checkpoint", step=2),
    frame("status", status="running", phase="training", pause_requested=True),
    frame("status", status="running", phase="training", pause_requested=False),
    Frame(None, {"type": "end", "status": "succeeded", "last_seq": 8}),
]


def test_plain_lines_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=200)
    seen = follow("job_1", STORY, console)
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert lines == [
        "running · training",
        "step 1/2  loss 4.000  1,200 tokens/s · 1:01 left",
        "[half way]",
        "step 2: evaluation loss 1.500",
        "checkpoint at step 2",
        "a pause is asked for",
        "a pause is taken back",
    ]
    assert (seen.status, seen.losses) == ("succeeded", [4.0, 2.0])


def test_the_drawn_view_shows_where_it_stands() -> None:
    seen = Seen("job_1")
    for each in STORY[:5]:
        line = seen.take(each)
        if line:
            seen.lines.append(line)
    console = Console(file=io.StringIO(), width=120)
    console.print(drawn(seen))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert " training   job_1" in text
    assert "2/2  1,200 tokens/s · 1:01 left" in text
    assert "4.000 → 3.000" in text  # the mean of the last five
    assert "[half way]" in text


def test_a_terminal_gets_the_live_view() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    assert follow("job_1", STORY, console).status == "succeeded"


def test_sparkline_and_clock() -> None:
    assert sparkline([3, 2, 1, 0]) == "█▆▃▁"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert len(sparkline([float(n) for n in range(1000)], 40)) == 40
    assert (clock(61), clock(3661)) == ("1:01", "1:01:01")


def test_the_shop_has_no_question_twice() -> None:
    questions = []
    for name, rows in (("shop", 200), ("shop-validation", 20)):
        lines = (ROOT / "examples" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == rows
        for line in lines:
            roles = [message["role"] for message in json.loads(line)["messages"]]
            assert roles == ["user", "assistant"]
            questions.append(json.loads(line)["messages"][0]["content"])
    assert len(set(questions)) == len(questions)
    korean = [text for text in questions if any("가" <= letter <= "힣" for letter in text)]
    assert len(korean) == 110
