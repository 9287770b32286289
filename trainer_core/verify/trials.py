"""Short runs of a spec on a sample of its data, each in a process of its own."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.checkpoints import FOLDER
from trainer_core.errors import TrainerError
from trainer_core.events import RunEvent, read_events
from trainer_core.publish.manifest import read_manifest
from trainer_core.runner import EVENTS, run_launch
from trainer_core.spec import Launch
from trainer_core.words import flush

STEPS = 6
SAVED_EVERY = 2
_SAMPLE = 256
_LONGEST = 3600.0
_TICK = 0.02


@dataclass(frozen=True)
class Trial:
    """One run: how its process ended (negative: a signal), and what its folder holds."""

    code: int
    work: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Data of the events of one type."""
        events = (event for event, _ in read_events(self.work / EVENTS))
        return [event.data for event in events if event.type == kind]

    @property
    def losses(self) -> dict[int, float]:
        """Step → training loss, exact."""
        return {m["step"]: m["loss"] for m in self.of("metrics") if "loss" in m}

    def weights(self) -> list[str]:
        """Hashes of what was published."""
        files = read_manifest(self.work / "model").files
        return [file.sha256 for file in files if file.path.endswith(".safetensors")]

    def checkpoint(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.work / FOLDER / f"step-{step:08d}"


@dataclass
class Trials:
    """Runs of one spec below `folder`; a run that was made is not made again."""

    launch: Launch
    secrets: Mapping[str, str]
    folder: Path
    made: dict[str, Trial] = field(default_factory=dict)

    def run(self, name: str, changes: dict[str, dict[str, Any]], *, calm: bool = False) -> Trial:
        """A whole run with `changes` of the spec, block by block; `calm`: without any dropout.

        Raises TrainerError with its reason where it does not succeed.
        """
        if name not in self.made:
            trial = self._fork(self._launch(name, changes), None, calm=calm)
            if trial.code:
                raise _reason(trial)
            self.made[name] = trial
        return self.made[name]

    def killed(self, name: str, changes: dict[str, dict[str, Any]], step: int) -> Trial:
        """A run that is killed by SIGKILL when it tells of this step."""

        def listen(event: RunEvent) -> None:
            if event.type == "metrics" and event.data["step"] == step:
                os.kill(os.getpid(), signal.SIGKILL)

        trial = self._fork(self._launch(name, changes), listen, calm=False)
        if not trial.code:
            raise TrainerError(f"the run outlived SIGKILL at step {step}")
        return trial

    def resumed(self, name: str, changes: dict[str, dict[str, Any]], checkpoint: Path) -> Trial:
        """A run that goes on from a checkpoint; raises as `run` does."""
        launch = self._launch(name, changes)
        paths = launch.paths.model_copy(update={"resume_from": str(checkpoint)})
        trial = self._fork(launch.model_copy(update={"paths": paths}), None, calm=False)
        if trial.code:
            raise _reason(trial)
        return trial

    def _launch(self, name: str, changes: dict[str, dict[str, Any]]) -> Launch:
        work = self.folder / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        spec = self.launch.spec
        given = spec.model_dump(exclude_unset=True)
        for block, values in changes.items():
            given[block] = (given.get(block) or {}) | values
        paths = self.launch.paths.model_copy(update={"work": str(work)})
        changed = type(spec).model_validate(given)
        return self.launch.model_copy(update={"spec": changed, "paths": paths})

    def _fork(
        self, launch: Launch, listen: Callable[[RunEvent], None] | None, *, calm: bool
    ) -> Trial:
        work = Path(launch.paths.work)
        run = partial(run_launch, launch, self.secrets, listen, calm=calm)
        return Trial(in_child(run, work / "output.log"), work)


def sampled(launch: Launch) -> Launch:
    """The launch on the first rows of each source, for a few steps, without what only costs time.

    Nothing that is said of the data, the model, the task or the optimizer changes.
    """
    spec = launch.spec
    given = spec.model_dump(exclude_unset=True)
    for part in ("train", "validation"):
        sources = given["data"].get(part)
        for source in sources if isinstance(sources, list) else ():
            source["num_samples"] = min(source.get("num_samples") or _SAMPLE, _SAMPLE)
    given["evaluation"] = {"max_samples": 8}
    given["checkpoint"] = {"save_steps": SAVED_EVERY}
    given["publish"] = {}
    given["training"] = (given.get("training") or {}) | {"max_steps": STEPS, "logging_steps": 1}
    given["training"].pop("num_train_epochs", None)
    return launch.model_copy(update={"spec": type(spec).model_validate(given)})


def in_child(work: Callable[[], int], log: Path) -> int:
    """Do `work` in a fork that writes to `log`; returns its exit code (negative: a signal).

    Nothing was computed in this process, so that forks of it may.
    """
    flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = work()
        finally:
            flush()
            os._exit(code)
    return _ended(pid)


def _ended(pid: int) -> int:
    deadline = time.monotonic() + _LONGEST
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline += _LONGEST
        time.sleep(_TICK)


def _reason(trial: Trial) -> TrainerError:
    told = trial.of("result") if (trial.work / EVENTS).exists() else []
    said = told[-1]["message"] if told else f"its process ended with code {trial.code}"
    return TrainerError(f"a run did not succeed: {said}")
