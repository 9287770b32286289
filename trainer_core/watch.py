"""Watches a training that runs but comes to nothing: a loss that rises, stays or crawls."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any

from trainer_core.errors import Diverged, Stalled

WINDOW = 20
"""Steps whose mean is compared: single batches scatter."""
_RISEN = 2.0
_ABOVE_BEST = 3.0
_LOST = 3.0
_LOST_STEPS = 5
FLAT_STEPS = 100
_SAME = 1e-6
_SLOW = 20.0
SLOW_SECONDS = 900.0


class Watch:
    """Sees each step; raises Diverged or Stalled with a plain cause.

    `falls` says whether a lower loss is a better one: a likelihood's is, an advantage's is not.
    `guess` is the loss of who guesses: a run far above it has lost its weights, however it began.
    """

    def __init__(
        self,
        *,
        falls: bool = True,
        guess: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._falls = falls
        self._guess = guess
        self._begun_at: float | None = None
        self._clock = clock
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._first: float | None = None
        self._best = math.inf
        self._flat_at: float | None = None
        self._flat_steps = 0
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._fastest = math.inf
        self._slow_since: float | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: what the loss began with, its best, and the newest losses."""
        best = self._best if math.isfinite(self._best) else None
        seen = {"first": self._first, "best": best, "losses": list(self._losses)}
        return seen | {"begun_at": self._begun_at}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Of a checkpoint without it the beginning is not known: no loss that
        rises ends such a run, because the loss of a late step is no measure for later ones."""
        if not state:
            self._falls, self._guess = False, None
            return
        self._first = state["first"]
        self._begun_at = state.get("begun_at")
        self._best = math.inf if state["best"] is None else state["best"]
        self._losses.extend(state["losses"])

    def loss(self, step: int, loss: float, gradient: float | None) -> None:
        """The loss of one step, and the norm of its gradient where it is known."""
        self._look_for_flatness(step, loss, gradient)
        self._losses.append(loss)
        self._look_for_lost_weights(step, loss)
        if not self._falls or len(self._losses) < WINDOW:
            return
        mean = fmean(self._losses)
        self._best = min(self._best, mean)
        self._first = mean if self._first is None else self._first
        if mean > _RISEN * self._first and mean > _ABOVE_BEST * self._best > 0:
            raise Diverged(
                f"the loss has risen to {mean:.4g} (mean of steps {step - WINDOW + 1} to {step}),"
                f" after {self._first:.4g} at the beginning and {self._best:.4g} at best: lower"
                " training.learning_rate, or raise training.warmup_steps",
                "training.learning_rate",
            )

    def _look_for_lost_weights(self, step: int, loss: float) -> None:
        self._begun_at = loss if self._begun_at is None else self._begun_at
        if self._guess is None or len(self._losses) < _LOST_STEPS:
            return
        limit = _LOST * max(self._guess, self._begun_at)
        if min([*self._losses][-_LOST_STEPS:]) > limit:
            raise Diverged(
                f"the loss has risen to {loss:.4g} at step {step}, after {self._begun_at:.4g} at"
                f" the beginning; who guesses has {self._guess:.4g}: lower training.learning_rate",
                "training.learning_rate",
            )

    def _look_for_flatness(self, step: int, loss: float, gradient: float | None) -> None:
        same = self._flat_at is not None and abs(loss - self._flat_at) <= _SAME * abs(loss)
        if gradient != 0.0 or not same:
            self._flat_at, self._flat_steps = loss, 0
            return
        self._flat_steps += 1
        if self._flat_steps >= FLAT_STEPS:
            raise Diverged(
                f"the loss has been {loss:.6g} for {FLAT_STEPS} steps (up to step {step}) and no"
                " trained weight gets a gradient: what is trained does not reach the loss; train"
                " other modules (adapter.target_modules, adapter.trainable_patterns)",
                "adapter",
            )

    def time(self, step: int, seconds: float) -> None:
        """How long one step took."""
        self._seconds.append(seconds)
        if len(self._seconds) < WINDOW:
            return
        typical = median(self._seconds)
        self._fastest = min(self._fastest, typical)
        if typical < _SLOW * self._fastest:
            self._slow_since = None
            return
        now = self._clock()
        self._slow_since = now if self._slow_since is None else self._slow_since
        if now - self._slow_since >= SLOW_SECONDS:
            raise Stalled(
                f"a step takes {typical:.3g} s at step {step}, and took {self._fastest:.3g} s"
                f" before; it has been {_SLOW:g} times as slow for {SLOW_SECONDS / 60:.0f} minutes:"
                " the machine is short of memory, throttled, or shared with others"
            )
