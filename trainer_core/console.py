"""A run in a terminal: phases, losses and the end, one line each."""

import sys
import time
from typing import Any

from trainer_core.events import RunEvent

_SECONDS_BETWEEN_LINES = 1.0


class Console:
    """Prints a run's events for people; metrics at most once a second, the last one always."""

    def __init__(self) -> None:
        self._next_line = 0.0
        self._total = 0
        self._eta: float | None = None
        self._held_back: RunEvent | None = None

    def __call__(self, event: RunEvent) -> None:
        """Show one event."""
        show = getattr(self, f"_{event.type}", None)
        if show is not None:
            show(event)

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _phase(self, event: RunEvent) -> None:
        self._flush()
        self._say(f"── {event.data['phase']}")

    def _progress(self, event: RunEvent) -> None:
        self._total = event.data["total_steps"]
        self._eta = event.data.get("eta_seconds")

    def _metrics(self, event: RunEvent) -> None:
        self._held_back = event
        if "eval_loss" in event.data or time.monotonic() >= self._next_line:
            self._flush()

    def _flush(self) -> None:
        if self._held_back is None:
            return
        self._say(_metrics_line(self._held_back.data, self._total, self._eta))
        self._held_back = None
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def _log(self, event: RunEvent) -> None:
        self._say(f"   {event.data['message']}")

    def _warning(self, event: RunEvent) -> None:
        self._say(f" ! {event.data['message']}")

    def _resumed(self, event: RunEvent) -> None:
        self._say(f"   going on after step {event.data['step']}")

    def _checkpoint(self, event: RunEvent) -> None:
        self._flush()
        self._say(f"   saved {event.data['path']} ({_size(event.data['bytes'])})")

    def _artifact(self, event: RunEvent) -> None:
        self._say(f"   wrote {event.data['path']}/ ({_size(event.data['bytes'])})")

    def _result(self, event: RunEvent) -> None:
        self._flush()
        self._say(f"── {event.data['status']} at step {event.data['step']}")


def _metrics_line(data: dict[str, Any], total: int, eta: float | None) -> str:
    parts = [f"   step {data['step']}" + (f"/{total}" if total else "")]
    for name, form in (
        ("loss", "loss {:.4f}"),
        ("eval_loss", "validation loss {:.4f}"),
        ("learning_rate", "lr {:.2e}"),
        ("tokens_per_second", "{:.0f} tokens/s"),
    ):
        if name in data:
            parts.append(form.format(data[name]))
    if eta is not None:
        parts.append(f"{_duration(eta)} left")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
