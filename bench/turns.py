"""Sides of a measurement in turns: each run is a fork of one process that imported the stack.

What else the machine does so falls on every side alike; what counts is the median over the rounds.
`in_turns` runs one side behind the other; `step_by_step` two at once that take steps in turns.
"""

import contextlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer_core.events import RunEvent, read_events
from trainer_core.runner import run_launch
from trainer_core.spec import Launch


@dataclass(frozen=True)
class Run:
    """When each step was reported (wall and CPU seconds), and its loss (or other measure)."""

    times: dict[int, tuple[float, float]]
    losses: dict[int, float]

    def seconds(self, first: int, last: int) -> float:
        """From the end of step `first` to the end of step `last`."""
        return self.times[last][0] - self.times[first][0]

    def each(self, first: int, last: int) -> list[float]:
        """Seconds of each step behind `first`, up to `last`."""
        return [self.seconds(step - 1, step) for step in range(first + 1, last + 1)]

    def cpu_seconds(self, first: int, last: int) -> float:
        """The same of the process's work alone: blind to waiting for a core."""
        return self.times[last][1] - self.times[first][1]


Side = Callable[[str], Run]
"""Trains once under the name of a run."""


class Watch:
    """Notes the steps of a run: a listener of ours, or `callback` for a library's trainer."""

    def __init__(self, measure: str = "loss") -> None:
        self.run = Run({}, {})
        self._measure = measure
        self._waited = 0.0

    def note(self, step: int, values: Mapping[str, Any]) -> None:
        """One report of a step; what a side waits for its turn is no time of its own."""
        if self._measure in values:
            now = time.monotonic()
            self.run.times[step] = (now - self._waited, time.process_time())
            self.run.losses[step] = values[self._measure]
            if _baton is not None:
                _baton.pass_on()
                self._waited += time.monotonic() - now

    def listen(self, event: RunEvent) -> None:
        """For `run_launch`."""
        if event.type == "metrics":
            self.note(event.data["step"], event.data)

    def callback(self) -> Any:
        """For a Trainer of Transformers."""
        from transformers import TrainerCallback

        def on_log(_self: Any, _args: Any, state: Any, _control: Any, **given: Any) -> None:
            self.note(state.global_step, given["logs"])

        return type("WatchCallback", (TrainerCallback,), {"on_log": on_log})()


def launch_of(
    name: str, spec: Mapping[str, Any], folder: Path, prepared: Path, threads: int
) -> dict[str, Any]:
    """A launch on prepared rows, with its work folder `name` below `folder`."""
    return {
        "attempt_id": name,
        "job_id": "bench",
        "job_name": "bench",
        "spec": spec,
        "paths": {"work": str(folder / name), "prepared": str(prepared)},
        "threads": threads,
    }


def told(work: Path) -> Run:
    """A finished run's steps by the times in its events; there are no CPU seconds."""
    run = Run({}, {})
    for event, _ in read_events(work / "events.jsonl"):
        if event.type == "metrics" and "loss" in event.data:
            at = datetime.fromisoformat(str(event.time)).timestamp()
            run.times[event.data["step"]] = (at, 0.0)
            run.losses[event.data["step"]] = event.data["loss"]
    return run


def by_us(launch: Mapping[str, Any], measure: str = "loss") -> Run:
    """Through `run_launch`: events, fsynced checkpoints with manifests, a model folder."""
    watch = Watch(measure)
    code = run_launch(Launch.model_validate(launch), {}, watch.listen)
    assert code == 0, (Path(launch["paths"]["work"]) / "exit.json").read_text()
    return watch.run


def in_fork(work: Callable[[], Any], log: Path) -> Any:
    """Run `work` in a fork, its output in `log`; returns what it returned, through JSON."""
    receive, pid = _forked(work, log)
    return _result_of(receive, pid, log)


def together(works: Sequence[Callable[[], Any]], logs: Sequence[Path]) -> list[Any]:
    """The same for several forks at a time."""
    begun = [_forked(work, log) for work, log in zip(works, logs, strict=True)]
    return [_result_of(*each, log) for each, log in zip(begun, logs, strict=True)]


def _forked(work: Callable[[], Any], log: Path) -> tuple[int, int]:
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            _one_thread()
            result = work()
            with os.fdopen(send, "w") as answer:
                json.dump(result, answer)
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            os._exit(0)
    os.close(send)
    return receive, pid


def _one_thread() -> None:
    """Until a run says how many: threads that wait for each other crawl beside other work."""
    import torch

    torch.set_num_threads(1)


def _result_of(receive: int, pid: int, log: Path) -> Any:
    with os.fdopen(receive) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise RuntimeError(log.read_text()[-2000:])
    return json.loads(text)


def measured(side: Side, name: str, folder: Path) -> Run:
    """One run in a fork."""

    return _run_of(in_fork(lambda: _told(side(name)), folder / f"{name}.log"))


def _told(run: Run) -> Any:
    return [run.times, run.losses]


def _run_of(told: Any) -> Run:
    times, losses = told
    return Run({int(k): tuple(v) for k, v in times.items()}, {int(k): v for k, v in losses.items()})


def in_turns(sides: Mapping[str, Side], folder: Path, rounds: int) -> Iterator[dict[str, Run]]:
    """Yield each round's runs; every other round goes the other way about."""
    for number in range(rounds):
        order = list(sides.items())[:: -1 if number % 2 else 1]
        yield {name: measured(side, f"{name}-{number}", folder) for name, side in order}


class Baton:
    """Lets forks take steps in turns, never at once; a side that is gone is not waited for."""

    def __init__(self, take: int, give: int, *, first: bool) -> None:
        self._take, self._give = take, give
        self._holds = first

    def take_hold(self, ends: Sequence[int]) -> None:
        """In the fork: become its baton, and let go of what of the ends of all is another's."""
        global _baton
        _baton = self
        for end in ends:
            if end not in (self._take, self._give):
                os.close(end)

    def hand_on(self) -> dict[str, Any]:
        """For `subprocess.run`: a process of its own takes this side's steps, with BATON in its
        environment (what it reads, what it writes, whether it goes first)."""
        words = f"{self._take} {self._give} {int(self._holds)}"
        return {"pass_fds": (self._take, self._give), "env": os.environ | {"BATON": words}}

    def pass_on(self) -> None:
        """Behind a step: let the next side take one, and wait until the one before has."""
        if self._holds:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._give, b".")
        self._holds = bool(os.read(self._take, 1))


_baton: Baton | None = None


def held_baton() -> Baton:
    """That of this fork, in which a side of `step_by_step` runs."""
    assert _baton is not None, "this side does not take its steps in turns"
    return _baton


def step_by_step(sides: Mapping[str, Side], folder: Path, rounds: int) -> Iterator[dict[str, Run]]:
    """Yield each round's runs of sides that are all there at once and take their steps in turns.

    A machine that others use is quick and slow by moods that last longer than a run does: so each
    of them meets every side. Sides report in the process that computes, so none has ranks.
    """
    for number in range(rounds):
        names = list(sides)[:: -1 if number % 2 else 1]
        pipes = [os.pipe() for _ in names]  # the one that each side reads
        ends = [end for pipe in pipes for end in pipe]
        begun = {}
        for place, name in enumerate(names):
            give = pipes[(place + 1) % len(pipes)][1]
            baton = Baton(pipes[place][0], give, first=place == 0)
            run = f"{name}-{number}"
            work = _with_baton(baton, ends, sides[name], run)
            begun[name] = _forked(work, folder / f"{run}.log")
        for end in ends:
            os.close(end)
        yield {
            name: _run_of(_result_of(*fork, folder / f"{name}-{number}.log"))
            for name, fork in begun.items()
        }


def _with_baton(baton: Baton, ends: Sequence[int], side: Side, name: str) -> Callable[[], Any]:
    def work() -> Any:
        baton.take_hold(ends)
        return _told(side(name))

    return work


def rounds_asked(usual: int) -> int:
    """`usual`, or fewer with BENCH_QUICK=1."""
    return min(usual, 3) if os.environ.get("BENCH_QUICK") else usual


def verdict(what: str, values: Sequence[float], limit: float, *, at_most: bool = False) -> bool:
    """Print the median with its limit and the spread; whether it is kept."""
    middle = statistics.median(values)
    good = middle <= limit if at_most else middle >= limit
    side = "at most" if at_most else "at least"
    spread = f", {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""
    word = "ok" if good else "NOT ok"
    print(f"{what}: {middle:.3f} (limit: {side} {limit}{spread}): {word}", flush=True)
    return good
