"""The whole embedded stack for the tests: every process real, a tiny model, leases of seconds."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psutil
import pytest

from polar.stack import control
from polar.stack.home import Home
from polar.stack.services import Postgres
from polar.stack.state import StackState, running_state
from tests.plain import Plain
from tests.services import ROOT, wait_until

Json = dict[str, Any]
TERMINAL = ("succeeded", "failed", "cancelled")
GRACE = 8.0
SLOTS = 2
SETTINGS = {
    # On two busy cores one thread each: OpenMP threads that wait for each other crawl there.
    "POLAR_CPU_SLOTS": str(SLOTS),
    "POLAR_GRACE": str(GRACE),
    "POLAR_LEASE": "6",
    "POLAR_LEASE_RENEW": "1.5",
    "POLAR_RETRY_BASE": "0.2",
    "POLAR_POLL": "0.2",
    "POLAR_HEARTBEAT": "2",
}


@dataclass
class World:
    """A running stack and its client."""

    home: Home
    state: StackState
    client: Plain
    model: Path
    data: Path

    # -- jobs ---------------------------------------------------------------------------------

    def spec(self, *, steps: int = 6, rows: str = "rows.jsonl", **blocks: Json) -> Json:
        """A LoRA job of a second or so; `blocks` are merged into it."""
        spec: Json = {
            "task": {"type": "sft", "max_length": 64},
            "model": {"source": "folder", "name_or_path": str(self.model)},
            "data": {"train": [{"source": "folder", "path": str(self.data / rows)}]},
            "training": {
                "learning_rate": 0.01,
                "max_steps": steps,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 1,
                "warmup_steps": 0,
            },
            "adapter": {"type": "lora", "r": 4, "lora_alpha": 8},
            "retry": {"max_attempts": 3},
        }
        for name, block in blocks.items():
            spec[name] = {**spec.get(name, {}), **block}
        return spec

    def submit(self, **blocks: Any) -> str:
        """Submit `spec(**blocks)`; returns the job's id."""
        return str(self.client.submit(self.spec(**blocks))["id"])

    def get(self, job_id: str) -> Json:
        return self.client.get(job_id)

    def until(self, job_id: str, *states: str, timeout: float = 90.0) -> Json:
        """Wait for one of the statuses or phases; fails early when the job ends otherwise."""

        def reached() -> Json | None:
            job = self.get(job_id)
            if job["status"] in states or job["phase"] in states:
                return job
            if job["status"] in TERMINAL:
                raise AssertionError(f"{job['status']}: {job['reason']}: {job['message']}")
            return None

        return wait_until(reached, timeout=timeout, every=0.05)

    def events(self, job_id: str) -> list[Json]:
        """Every durable event of the job, from its JSON pages."""
        found: list[Json] = []
        while True:
            after = found[-1]["seq"] if found else 0
            page = self.client.request("GET", f"/jobs/{job_id}/events", params={"after": after})
            if not page["data"]:
                return found
            found += page["data"]

    def losses(self, job_id: str) -> dict[int, float]:
        """The loss of each step; a step that was trained twice counts with its last."""
        return {
            event["data"]["step"]: event["data"]["loss"]
            for event in self.events(job_id)
            if event["type"] == "metrics" and "loss" in event["data"]
        }

    def polar(self, *arguments: str, timeout: float = 60) -> str:
        """Run `polar …` against the stack; returns what it says."""
        service = {"POLAR_URL": self.client.url, "POLAR_API_KEY": self.client.key or ""}
        done = subprocess.run(
            [sys.executable, "-m", "polar", *arguments],
            cwd=ROOT,
            env={**os.environ, **service},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sql(self, statement: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the stack's database; returns its rows, if it has any."""
        ports = self.home.settings()["ports"]
        assert isinstance(ports, dict)
        server = Postgres(
            self.home.path / "postgres", self.home.secrets / "postgres", ports["postgres"]
        )
        with server.connect("polar") as connection:
            done = connection.execute(statement, values)
            return done.fetchall() if done.description else []

    # -- processes ------------------------------------------------------------------------------

    def process(self, name: str) -> psutil.Process:
        """The stack's process of this name; one that is being started again is waited for."""

        def pid() -> int | None:
            state = running_state(self.home)
            assert state is not None
            return state.processes[name].pid

        return psutil.Process(wait_until(pid, timeout=60))

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Hold a process of the stack still."""
        process = self.process(name)
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    def attempt_folder(self, job_id: str) -> Path | None:
        """The folder of the job's newest attempt, once its trainer runs."""
        attempts = self.get(job_id)["attempts"]
        folder = self.home.path / "attempts" / attempts[-1]["id"] if attempts else None
        return folder if folder and (folder / "run.json").exists() else None

    def trainer(self, job_id: str) -> psutil.Process:
        """The trainer of the job's newest attempt."""
        folder = wait_until(lambda: self.attempt_folder(job_id), timeout=60)
        return psutil.Process(json.loads((folder / "run.json").read_text())["pid"])

    def resume_once_told(self, trainer: psutil.Process) -> None:
        """Let a frozen trainer go on as soon as its SIGTERM waits for it: it meets it there."""
        status = Path(f"/proc/{trainer.pid}/status")

        def told() -> bool:
            [pending] = re.findall(r"^ShdPnd:\s*(\w+)", status.read_text(), re.MULTILINE)
            return bool(int(pending, 16) >> (signal.SIGTERM - 1) & 1)

        wait_until(told, timeout=60)
        trainer.resume()

    def freeze_at(self, job_id: str, phase: str) -> psutil.Process:
        """Stop the trainer as soon as it says that it is in `phase`; returns it."""
        return self._freeze_when(job_id, f'"phase":"{phase}"')

    def freeze_after(self, job_id: str, step: int) -> psutil.Process:
        """Stop the trainer as soon as it tells of this step's metrics; returns it."""
        return self._freeze_when(job_id, rf'"type":"metrics".*"step":{step}\b')

    def _freeze_when(self, job_id: str, told: str) -> psutil.Process:
        folder = wait_until(lambda: self.attempt_folder(job_id), timeout=60, every=0.005)
        process = psutil.Process(json.loads((folder / "run.json").read_text())["pid"])
        said = folder / "events.jsonl"
        deadline = time.monotonic() + 60
        while not (said.exists() and re.search(told, said.read_text())):
            assert time.monotonic() < deadline, f"never told {told}"
            time.sleep(0.001)
        process.suspend()
        return process

    def leftovers(self, job_id: str) -> list[str]:
        """Processes that belong to the job: by its folders, command line or open files."""
        names = {job_id, *(a["id"] for a in self.get(job_id)["attempts"])}
        return [line for line in map(_description, psutil.process_iter()) if _names(line, names)]


def _names(line: str, names: set[str]) -> bool:
    return any(name in line for name in names)


def _is_ready(home: Home, name: str) -> bool:
    state = running_state(home)
    return state is not None and state.processes[name].condition == "ready"


def _description(process: psutil.Process) -> str:
    with suppress(psutil.Error, OSError):
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        files = [Path(f"/proc/{process.pid}/fd/{fd}") for fd in (1, 2)]
        targets = [str(file.readlink()) for file in files if file.exists()]
        return " ".join([str(process.pid), *process.cmdline(), process.cwd(), *targets])
    return ""


@contextmanager
def running_stack(
    folder: Path, model: Path, data: Path, settings: Mapping[str, str] = SETTINGS
) -> Iterator[World]:
    """Start the stack on `folder`, and end it with everything that it started."""
    home = Home(folder)
    with pytest.MonkeyPatch.context() as patch:  # the stack's settings, not the other tests'
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.setenv("POLAR_MODEL_FOLDERS", json.dumps([str(model.parent)]))
        patch.setenv("POLAR_DATA_FOLDERS", json.dumps([str(data)]))
        guard = control.launch(home, control.Door(), attached=True)
    try:
        *_, state = control.progress(home, guard)
        # Readiness does not wait for the fork server; the tests do, cold starts take long.
        wait_until(lambda: _is_ready(home, "warm"), timeout=240, every=0.2)
        key = (home.secrets / "api-key").read_text().strip()
        with Plain(state.url, key) as client:
            yield World(home, state, client, model, data)
    finally:
        with suppress(control.StackFailed):
            control.stop(home)
        if guard.poll() is None:
            guard.send_signal(signal.SIGKILL)
        guard.wait(10)
