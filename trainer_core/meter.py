"""Counts what the loop consumes, and turns it into rates and a remaining time."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_STEPS_REMEMBERED = 50


class Meter:
    """Samples, tokens, losses and step times; fed by the collator and the loop.

    A sample is one data row: a packed row counts as many. Padding is no token.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0
        self.loss_sum = 0.0
        self.loss_steps = 0
        self._mark = (time.monotonic(), 0, 0)
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._step_began: float | None = None
        self._ahead: deque[tuple[int, int]] = deque()
        self._paused = False

    def fetched(self, samples: int, tokens: int) -> None:
        """A batch was put together; loaders do so before it is trained on."""
        if not self._paused:
            self._ahead.append((samples, tokens))

    def trained(self) -> None:
        """The oldest fetched batch was trained on."""
        samples, tokens = self._ahead.popleft()
        self.samples += samples
        self.tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Batches inside are not for training."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def begin_step(self) -> None:
        """A step starts now: what came before it (saving, evaluating) is not the step's time."""
        self._step_began = time.monotonic()

    def end_step(self) -> float | None:
        """A step is over; returns its seconds, None for one whose beginning was not told."""
        self.loss_steps += 1
        if self._step_began is None:
            return None
        self._steps.append(time.monotonic() - self._step_began)
        return self._steps[-1]

    def totals(self) -> tuple[float, float, float]:
        """Loss (of the open window), samples and tokens so far."""
        return self.loss_sum, float(self.samples), float(self.tokens)

    def add(self, before: tuple[float, float, float], done: tuple[float, float, float]) -> None:
        """Set what was counted to `before`, and `done` since then."""
        self.loss_sum = before[0] + done[0]
        self.samples = round(before[1] + done[1])
        self.tokens = round(before[2] + done[2])

    def restart(self) -> None:
        """Forget the open window of rates; the time so far was not training."""
        self._mark = (time.monotonic(), self.samples, self.tokens)

    def rates(self) -> dict[str, float]:
        """Samples and tokens per second since the last call of `restart`."""
        began, samples, tokens = self._mark
        seconds = max(time.monotonic() - began, 1e-9)
        return {
            "samples_per_second": (self.samples - samples) / seconds,
            "tokens_per_second": (self.tokens - tokens) / seconds,
        }

    def eta_seconds(self, steps_left: int) -> float | None:
        """Seconds until the last step, from the mean of the recent ones; None before the first."""
        if not self._steps:
            return None
        return steps_left * sum(self._steps) / len(self._steps)

    def take_loss(self) -> float:
        """Mean loss per step since the last call; at least one step must have ended."""
        mean = self.loss_sum / self.loss_steps
        self.loss_sum, self.loss_steps = 0.0, 0
        return mean
