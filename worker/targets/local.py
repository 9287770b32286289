"""Target `local`: trainers as processes of this host, warm or cold."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from app.jobs.spec import Compute
from app.settings import Settings
from trainer_core.publish.manifest import write_durably
from trainer_core.spec import Launch
from worker import forks
from worker.environment import bounds
from worker.process import Order, TrainerProcess, start
from worker.proctree import Identity, is_alive, kill_tree
from worker.target import Handle, Observation, Observations, ProvisioningFailed

RUN_FILE = "run.json"
LAUNCH_FILE = "launch.json"


class LocalTarget:
    """Starts trainers that die with this process; knows those of others by pid and start time.

    `secrets` are what the trainers of this object are handed.
    """

    name = "local"

    def __init__(
        self, settings: Settings, secrets: Mapping[str, str] | None = None, *, warm: bool = True
    ) -> None:
        self._settings = settings
        self._attempts = settings.home / "attempts"
        self._grace = settings.grace
        self._socket = forks.socket_path(settings) if warm else None
        self._secrets = dict(secrets or {})
        self._running: dict[str, TrainerProcess] = {}

    def launch(self, launch: Launch, compute: Compute) -> Handle:
        """Write `launch.json`, start `python -m trainer_core run` on it and note who it is."""
        del compute
        work = Path(launch.paths.work)
        try:
            write_durably(work / LAUNCH_FILE, launch.model_dump_json(indent=1).encode())
        except OSError as error:
            raise ProvisioningFailed(f"{work / LAUNCH_FILE}: {error}") from error
        order = Order(
            argv=["run", str(work / LAUNCH_FILE)],
            mark=launch.attempt_id,
            cwd=work,
            log=work / "output.log",
            secrets=self._secrets,
            threads=launch.threads or 1,
            bounds=bounds(self._settings, work),
        )
        process = start(order, self._socket)
        self._running[launch.attempt_id] = process
        who = process.identity
        data = {"pid": who.pid, "start": who.start, "how": process.how}
        write_durably(work / RUN_FILE, json.dumps(data).encode())
        return Handle(self.name, launch.attempt_id, data)

    def process(self, handle: Handle) -> TrainerProcess:
        """Return the process of a handle that this object launched."""
        return self._running[handle.label]

    def observe_many(self, handles: Sequence[Handle]) -> Observations:
        """Look at processes; the exit code is known for those that this object launched."""
        return {handle.label: self._observe(handle) for handle in handles}

    def _observe(self, handle: Handle) -> Observation:
        process = self._running.get(handle.label)
        if process is not None:
            ended = process.poll()
            return Observation("exited", ended.code) if ended else Observation("running")
        return Observation("running" if is_alive(_identity(handle)) else "gone")

    def stop(self, handle: Handle) -> None:
        """Kill the trainer with everything below it, and see that it is gone."""
        process = self._running.get(handle.label)
        if process is not None:
            process.kill()
        elif kill_tree(_identity(handle), handle.label):
            raise ProvisioningFailed(f"processes of {handle.label} could not be killed")

    def sweep(self, label: str) -> Sequence[Handle]:
        """Return what runs on this host, by the notes in the attempts' folders."""
        found = (self.noted(path.parent.name) for path in self._attempts.glob(f"{label}*/run.json"))
        return [handle for handle in found if handle and is_alive(_identity(handle))]

    def noted(self, label: str) -> Handle | None:
        """Return the handle that was noted in the attempt's folder."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads((self._attempts / label / RUN_FILE).read_bytes())
            return Handle(self.name, label, {"pid": int(data["pid"]), "start": int(data["start"])})
        return None


def _identity(handle: Handle) -> Identity:
    return Identity(handle.data["pid"], handle.data["start"])
