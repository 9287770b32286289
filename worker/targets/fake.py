"""Target `fake`: runs no training, but walks through a run's states, with faults on demand.

For drills and tests; jobs reach it only where the setting `fake_target` is on. A job's labels say
what happens:

    fake/steps   training steps (3)              fake/pace    seconds between two events (0.05)
    fake/hold    a phase that never ends         fake/fault   one of `Fault`, after the last step
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from app.jobs.spec import Compute
from trainer_core.events import EventType, RunEvent
from trainer_core.spec import Launch
from worker.target import (
    Handle,
    NoCapacity,
    Observation,
    Observations,
    ProvisioningFailed,
    TargetMisconfigured,
)

Clock = Callable[[], float]


class Fault(StrEnum):
    """What goes wrong."""

    NONE = "none"
    NO_CAPACITY = "no_capacity"
    PROVISIONING_FAILED = "provisioning_failed"
    MISCONFIGURED = "misconfigured"
    SILENT = "silent"
    ERROR = "error"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    GONE = "gone"
    STUBBORN = "stubborn"


_REFUSALS = {
    Fault.NO_CAPACITY: NoCapacity,
    Fault.PROVISIONING_FAILED: ProvisioningFailed,
    Fault.MISCONFIGURED: TargetMisconfigured,
}
# Exit code and the result that the trainer still gets out, if any.
_ENDS: dict[Fault, tuple[int, dict[str, Any] | None]] = {
    Fault.NONE: (0, {"status": "succeeded", "reason": None, "message": ""}),
    Fault.STUBBORN: (0, {"status": "succeeded", "reason": None, "message": ""}),
    Fault.ERROR: (70, {"status": "failed", "reason": "trainer_error", "message": "it broke"}),
    Fault.OUT_OF_MEMORY: (71, {"status": "failed", "reason": "out_of_memory", "message": "full"}),
    Fault.KILLED: (-9, None),
}


@dataclass
class _Run:
    """A run that exists only here: its script, and since when it plays."""

    script: list[tuple[EventType, dict[str, Any]]]
    fault: Fault
    pace: float
    began: float
    held: bool
    code: int | None = None
    stops: int = 0
    said: list[RunEvent] = field(default_factory=list)


class FakeTarget:
    """Machines that exist in this object alone: when its process ends, they are lost."""

    name = "fake"

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, _Run] = {}

    def launch(self, launch: Launch, compute: Compute) -> Handle:
        """Begin a run as the job's labels say; launching twice finds the first."""
        del compute
        labels = launch.labels
        fault = Fault(labels.get("fake/fault", Fault.NONE))
        if fault in _REFUSALS:
            raise _REFUSALS[fault](f"asked for by the label fake/fault={fault}")
        if launch.attempt_id not in self._runs:
            script = [] if fault is Fault.SILENT else _script(labels)
            self._runs[launch.attempt_id] = _Run(
                script,
                fault,
                max(float(labels.get("fake/pace", 0.05)), 1e-6),
                self._clock(),
                held="fake/hold" in labels,
            )
        return Handle(self.name, launch.attempt_id)

    def observe_many(self, handles: Sequence[Handle]) -> Observations:
        """Look at runs; one that this object does not know is gone."""
        return {handle.label: self._observe(handle.label) for handle in handles}

    def _observe(self, label: str) -> Observation:
        run = self._runs.get(label)
        if run is None:
            return Observation("gone")
        self._play(run)
        if run.code is not None:
            return Observation("exited", run.code)
        return Observation("running")

    def tail(self, handle: Handle, after: int) -> list[RunEvent]:
        """Return the run's events behind number `after`."""
        run = self._runs.get(handle.label)
        if run is None:
            return []
        self._play(run)
        return run.said[after:]

    def stop(self, handle: Handle) -> None:
        """End the run as by SIGTERM, or forget one that has ended; a stubborn one survives once."""
        run = self._runs.get(handle.label)
        if run is None or run.code is not None:
            self._runs.pop(handle.label, None)
            return
        run.stops += 1
        if run.fault is Fault.STUBBORN and run.stops == 1:
            raise ProvisioningFailed(f"{handle.label} does not stop")
        run.code = 75
        _say(
            run, "result", {"status": "interrupted", "reason": "interrupted", "message": "stopped"}
        )

    def sweep(self, label: str) -> Sequence[Handle]:
        """Return the runs that have not ended."""
        return [
            Handle(self.name, name)
            for name, run in self._runs.items()
            if name.startswith(label) and run.code is None
        ]

    def _play(self, run: _Run) -> None:
        """Say what is due by now, and end when everything was said."""
        due = int((self._clock() - run.began) / run.pace)
        while run.code is None and len(run.said) < min(due, len(run.script)):
            _say(run, *run.script[len(run.said)])
        if run.code is None and not run.held and len(run.said) == len(run.script) < due:
            self._end(run)

    def _end(self, run: _Run) -> None:
        if run.fault is Fault.SILENT:
            return
        if run.fault is Fault.GONE:
            self._runs = {name: other for name, other in self._runs.items() if other is not run}
            return
        run.code, result = _ENDS[run.fault]
        if result:
            _say(run, "result", result)


def _say(run: _Run, kind: EventType, data: dict[str, Any]) -> None:
    run.said.append(RunEvent(n=len(run.said) + 1, time=datetime.now(UTC), type=kind, data=data))


def _script(labels: dict[str, Any]) -> list[tuple[EventType, dict[str, Any]]]:
    steps = int(labels.get("fake/steps", 3))
    phases: dict[str, list[tuple[EventType, dict[str, Any]]]] = {
        "loading": [],
        "training": [
            ("metrics", {"step": step, "epoch": step / steps, "loss": round(3 / step, 4)})
            for step in range(1, steps + 1)
        ],
        "evaluating": [("metrics", {"step": steps, "epoch": 1.0, "eval_loss": 1.0})],
        "publishing": [],
    }
    script: list[tuple[EventType, dict[str, Any]]] = []
    for phase, events in phases.items():
        script += [("phase", {"phase": phase}), *events]
        if labels.get("fake/hold") == phase:
            break
    return script
