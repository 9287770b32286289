"""What a run really needs: two steps of it on its longest rows, in a process of their own.

Two, because an optimizer makes its states at the end of the first step, so that the second one
needs more. The process is ended when it tells of the second step: nothing is saved or published.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core import outbound
from trainer_core.data.prepared import Prepared, open_prepared
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.events import RunEvent, read_events
from trainer_core.launch import SECRETS_FD, read_launch, read_secrets
from trainer_core.plans.results import Probe
from trainer_core.plans.rows import write_longest
from trainer_core.plans.steps import planned_steps
from trainer_core.runner import EVENTS, run_launch
from trainer_core.spec import (
    AdaLoraAdapter,
    Checkpoint,
    Evaluation,
    Launch,
    Publish,
    TrainSpec,
)
from trainer_core.task import task_of
from trainer_core.warm import preload, quiet_libraries

Emit = Callable[..., Any]
_STEPS = 2
_TICK = 0.2
_LONGEST_SECONDS = 3600
_MEASURED = "measured.json"
_GB = 1e9


def probe(
    launch: Launch,
    secrets: Mapping[str, str],
    data: Prepared,
    predicted_gb: float,
    emit: Emit | None = None,
) -> Probe:
    """Measure a launch with a resolved spec; what goes wrong is in `failed`.

    Of several processes the first one is measured. `emit` is called while it lasts, and ends it by
    raising. Raises InvalidSpec for a task that trains nothing.
    """
    if not task_of(launch.spec).FACTS.trains:
        raise InvalidSpec("a probe measures steps of a training, and this task trains nothing")
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        short = _shortened(launch, data, Path(folder))
        _run(short, secrets, emit)
        return _read(Path(short.paths.work), predicted_gb)


def _shortened(launch: Launch, data: Prepared, folder: Path) -> Launch:
    spec = launch.spec
    loop = {"max_steps": _STEPS, "num_train_epochs": None, "logging_steps": 1}
    blocks = {
        "training": spec.training.model_copy(update=loop),
        "data": spec.data.model_copy(update={"validation": None}),
        "evaluation": Evaluation(strategy="no"),
        "checkpoint": Checkpoint(save_strategy="no", resume="never"),
        "publish": Publish(registry=False, merge="never"),
    }
    if isinstance(spec.adapter, AdaLoraAdapter):  # its schedule is that of the whole run
        blocks["adapter"] = spec.adapter.model_copy(update={"tinit": 0, "tfinal": 0})
    paths = {
        "work": str(folder / "work"),
        "prepared": str(_longest(spec, data, folder / "prepared")),
        "resume_from": None,
    }
    return launch.model_copy(
        update={
            "spec": spec.model_copy(update=blocks),
            "paths": launch.paths.model_copy(update=paths),
        }
    )


def _longest(spec: TrainSpec, data: Prepared, folder: Path) -> Path:
    """The longest rows of one step; all rows, where these make no batch (grouped by label)."""
    rows = write_longest(data, max(planned_steps(spec, data).global_batch, 2), folder)
    try:
        planned_steps(spec, open_prepared(rows))
    except InvalidData:
        return data.folder
    return rows


def _run(launch: Launch, secrets: Mapping[str, str], emit: Emit | None) -> None:
    """In a fresh interpreter: whatever this process has computed or imported is not measured."""
    work = Path(launch.paths.work)
    work.mkdir(parents=True)
    file = work / "launch.json"
    file.write_text(launch.model_dump_json())
    receive, send = os.pipe()
    with os.fdopen(send, "wb") as pipe, (work / "output.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer_core.plans.probe", str(file)],
            env=os.environ | {SECRETS_FD: str(receive)},
            pass_fds=[receive],
            stdout=log,
            stderr=log,
        )
        os.close(receive)
        pipe.write(json.dumps(dict(secrets)).encode())
    try:
        _wait(process, emit)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], emit: Emit | None) -> None:
    """Until it has ended; `emit` is told all the while, and may raise to end it."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TICK)
            return
        if emit is not None:
            emit("progress", step=0)


def _read(work: Path, predicted_gb: float) -> Probe:
    found: dict[str, Any] = {"base": 0.0, "changed": []}
    with suppress(OSError, ValueError):
        found |= json.loads((work / _MEASURED).read_text())
    peak = found.get("peak")
    return Probe(
        peak_gb=peak,
        base_gb=found["base"],
        factor=peak / predicted_gb if peak is not None and predicted_gb else None,
        changed=found["changed"],
        failed=None if peak is not None else _reason(work),
    )


def _reason(work: Path) -> str:
    events = [event for event, _ in read_events(work / EVENTS)] if (work / EVENTS).exists() else []
    told = [str(event.data["message"]) for event in events if event.type == "result"]
    return told[-1] if told else "its process was killed, or ended before its second step"


class Gauge:
    """Listens to a run and measures it; ends its process when everything is known."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._base = _resident("VmRSS")
        self._changed: list[str] = []

    def hear(self, event: RunEvent) -> None:
        """One event of the run."""
        if event.type == "phase" and event.data["phase"] == "training":
            _forget_peak()
        elif event.type == "warning" and event.data["code"] == "memory_ladder":
            self._changed.append(str(event.data["message"]))
        elif event.type == "metrics" and event.data["step"] == _STEPS:
            self._end()

    def _end(self) -> None:
        on_gpu = _reserved()
        peak = on_gpu if on_gpu is not None else _resident("VmHWM") - self._base
        told = {"peak": peak / _GB, "base": self._base / _GB, "changed": self._changed}
        self._out.write_text(json.dumps(told))
        os._exit(0)


def _resident(name: str) -> int:
    """Bytes of this process in memory, by their name in `/proc/self/status`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _forget_peak() -> None:
    """Loading a model may need more than training it: it is over when the first step begins."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # else the peak is that of the whole run
        Path("/proc/self/clear_refs").write_text("5")


def _reserved() -> int | None:
    """The most bytes that torch has reserved on a GPU; None on a CPU."""
    import torch

    return torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else None


def main(arguments: Sequence[str]) -> int:
    """`python -m trainer_core.plans.probe LAUNCH`: leaves what was measured beside it."""
    file = Path(arguments[0])
    quiet_libraries()
    outbound.guard()
    launch = read_launch(file)
    preload()
    return run_launch(launch, read_secrets(), Gauge(file.with_name(_MEASURED)).hear)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
