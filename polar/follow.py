"""Watching a job in the terminal: a live view, or plain lines where there is no terminal."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from polar.sse import Frame

BARS = "▁▂▃▄▅▆▇█"
LOG_LINES = 6
PLAIN_EVERY = 2.0  # seconds between two lines of metrics where there is no terminal


def sparkline(values: list[float], width: int = 40) -> str:
    """Draw `values` in at most `width` bars; more values are averaged into each."""
    if not values:
        return ""
    size = max(1, -(-len(values) // width))
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(group) / len(group) for group in groups]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def clock(seconds: float) -> str:
    """Return seconds as `m:ss` or `h:mm:ss`."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class Seen:
    """What the stream has told so far."""

    job_id: str
    status: str = "queued"
    phase: str = ""
    note: str = ""
    step: int = 0
    total: int = 0
    progress: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    eval_losses: list[float] = field(default_factory=list)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    began: float = field(default_factory=time.monotonic)

    def take(self, frame: Frame) -> str | None:
        """Learn from a frame; return a line for people when it is worth one."""
        learn = getattr(self, f"_{frame.type}", None)
        line: str | None = learn(frame.data) if learn else None
        if frame.type == "end":
            self.status = str(frame.body.get("status", self.status))
        return line

    def _status(self, data: dict[str, Any]) -> str | None:
        earlier = (self.status, self.phase)
        self.status = str(data.get("status") or self.status)
        self.phase = str(data.get("phase") or "")
        self.note = str(data.get("message") or data.get("waiting_for") or "")
        if wish := _wish(data):
            return wish
        if (self.status, self.phase) == earlier:
            return None
        return " · ".join(part for part in (self.status, self.phase, self.note) if part)

    def _phase(self, data: dict[str, Any]) -> str | None:
        return self._status({"status": self.status, **data})

    def _progress(self, data: dict[str, Any]) -> None:
        self.progress.update({name: value for name, value in data.items() if value is not None})
        self.step = int(data.get("step") or self.step)
        self.total = int(data.get("total_steps") or self.total)

    def _metrics(self, data: dict[str, Any]) -> str | None:
        self.step = int(data.get("step") or self.step)
        if "eval_loss" in data:
            self.eval_losses.append(float(data["eval_loss"]))
            return f"step {self.step}: evaluation loss {self.eval_losses[-1]:.3f}"
        if "loss" in data:
            self.losses.append(float(data["loss"]))
        if data.get("tokens_per_second"):
            self.progress["tokens_per_second"] = data["tokens_per_second"]
        return None

    def _log(self, data: dict[str, Any]) -> str | None:
        return str(data.get("message") or "").rstrip() or None

    def _warning(self, data: dict[str, Any]) -> str:
        return f"warning: {data.get('message')}"

    def _resumed(self, data: dict[str, Any]) -> str:
        return f"going on after step {data.get('step')}"

    def _checkpoint(self, data: dict[str, Any]) -> str:
        return f"checkpoint at step {data.get('step')}"

    def _artifact(self, data: dict[str, Any]) -> str:
        return f"saved {data.get('kind')} {data.get('path') or ''}".rstrip()

    def _hub(self, data: dict[str, Any]) -> str:
        words = (f"hub {data.get('repo_id')}: {data.get('state')}", data.get("message"))
        return " · ".join(str(word) for word in words if word)

    def _attempt(self, data: dict[str, Any]) -> str | None:
        words = [data.get("event") or data.get("outcome"), data.get("machine"), data.get("message")]
        said = " · ".join(str(word) for word in words if word)
        return f"attempt {data.get('number', '')} {said}".strip() if said else None

    def speed(self) -> str:
        """Return tokens per second and the time left, as far as they are known."""
        parts = []
        if rate := self.progress.get("tokens_per_second"):
            parts.append(f"{float(rate):,.0f} tokens/s")
        if (left := self.progress.get("eta_seconds")) is not None:
            parts.append(f"{clock(float(left))} left")
        return " · ".join(parts)


def _wish(data: dict[str, Any]) -> str | None:
    """Return what somebody asked for, which does not change the status yet."""
    if data.get("cancel_requested"):
        return "a cancel is asked for"
    wanted = data.get("pause_requested")
    return None if wanted is None else f"a pause is {'asked for' if wanted else 'taken back'}"


def drawn(seen: Seen) -> Group:
    """Draw the live view."""
    head = Text.assemble(
        (f" {seen.phase or seen.status} ", "bold black on cyan"),
        f"  {seen.job_id}  ",
        (f"{clock(time.monotonic() - seen.began)}", "dim"),
        (f"  {seen.note}" if seen.note else "", "dim"),
    )
    grid = Table.grid(padding=(0, 2))
    if seen.total:
        bar = ProgressBar(total=seen.total, completed=seen.step, width=40)
        grid.add_row("steps", bar, Text(f"{seen.step}/{seen.total}  {seen.speed()}"))
    if seen.losses:
        recent = seen.losses[-5:]
        now = sum(recent) / len(recent)
        curve = Text(sparkline(seen.losses), style="green")
        grid.add_row("loss", curve, Text(f"{seen.losses[0]:.3f} → {now:.3f}"))
    if seen.eval_losses:
        told = " → ".join(f"{value:.3f}" for value in seen.eval_losses[-4:])
        grid.add_row("evaluation", Text(told), "")
    lines = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in seen.lines]
    return Group(head, grid, *lines)


def follow(job_id: str, frames: Iterable[Frame], console: Console) -> Seen:
    """Show a job until its stream ends; return what was seen."""
    seen = Seen(job_id)
    if console.is_terminal:
        _live(seen, frames, console)
    else:
        _plain(seen, frames, console)
    return seen


def _live(seen: Seen, frames: Iterable[Frame], console: Console) -> None:
    with Live(get_renderable=lambda: drawn(seen), console=console, refresh_per_second=4):
        for frame in frames:
            line = seen.take(frame)
            if line:
                seen.lines.append(line)


def _plain(seen: Seen, frames: Iterable[Frame], console: Console) -> None:
    last = 0.0
    for frame in frames:
        line = seen.take(frame)
        if line:
            console.print(f"  {escape(line)}", soft_wrap=True)
        due = time.monotonic() - last >= PLAIN_EVERY
        if frame.type == "metrics" and "loss" in frame.data and due:
            last = time.monotonic()
            of = f"/{seen.total}" if seen.total else ""
            text = f"step {seen.step}{of}  loss {seen.losses[-1]:.3f}  {seen.speed()}"
            console.print(f"  {text.rstrip()}", soft_wrap=True)
