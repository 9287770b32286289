"""A host in small: a real model and data, hints taken to the handlers, and jobs watched."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.attempts import service
from app.db import transaction
from app.ids import new_id
from app.jobs.spec import JobSpec
from app.jobs.submit import Submission, submit
from app.settings import get_settings
from tests.services import wait_until
from tests.worker.world import PROJECT, add_host, one, rows, run_sql
from worker import forks
from worker.environment import ATTEMPT_MARK
from worker.handlers import HANDLERS
from worker.proctree import Identity, is_alive

HOST = "host-a"
ROWS = 48


@dataclass(frozen=True)
class Rig:
    """A host with one slot; `folder` holds the model and the data that its jobs name."""

    folder: Path

    def spec(self, **changes: Any) -> dict[str, Any]:
        """A quick job; `changes` go into the spec, dicts block by block.

        48 rows in batches of 4 are 12 steps an epoch, with dropout and a checkpoint every 4.
        """
        spec: dict[str, Any] = {
            "name": "tiny",
            "task": {"type": "sft"},
            "model": {"source": "folder", "name_or_path": str(self.folder / "model")},
            "data": {"train": [{"source": "folder", "path": str(self.folder / "train.jsonl")}]},
            "training": {
                "learning_rate": 0.01,
                "max_steps": 12,
                "per_device_train_batch_size": 4,
            },
            "checkpoint": {"save_steps": 4},
            "retry": {"max_attempts": 3},
        }
        for block, values in changes.items():
            merge = isinstance(spec.get(block), dict) and isinstance(values, dict)
            spec[block] = spec[block] | values if merge else values
        return spec

    def submit(self, **changes: Any) -> str:
        spec = JobSpec.model_validate(self.spec(**changes))
        with transaction() as session:
            return submit(session, Submission(PROJECT, spec)).id

    def until(self, job_id: str, *statuses: str, timeout: float = 60.0) -> str:
        """Carry hints and place until the job has one of these statuses."""
        deadline = time.monotonic() + timeout
        while (status := self.status(job_id)) not in statuses:
            assert time.monotonic() < deadline, f"still {status}: {self.story(job_id)}"
            self.step()
            time.sleep(0.01)
        return status

    def when(self, job_id: str, condition: Callable[[], Any], timeout: float = 60.0) -> Any:
        """Carry hints and place until the condition holds; returns its value."""

        def look() -> Any:
            self.step()
            return condition()

        try:
            return wait_until(look, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.story(job_id)}") from error

    def step(self) -> None:
        """What reconciler and Celery do: place what is ready, deliver what is hinted."""
        ready = rows("SELECT id FROM jobs WHERE status = 'queued' AND prepared_key IS NOT NULL")
        for (job_id,) in ready:
            with transaction() as session:
                service.reserve(session, job_id, HOST, [0])
        for handler, arguments in rows("DELETE FROM outbox RETURNING handler, args"):
            HANDLERS[handler](*arguments)

    def status(self, job_id: str) -> str:
        return str(one("SELECT status FROM jobs WHERE id = :id", id=job_id))

    def events(self, job_id: str, kind: str | None = None) -> list[dict[str, Any]]:
        """Data of the job's events, of one type if given."""
        found = rows("SELECT type, data FROM job_events WHERE job_id = :id ORDER BY seq", id=job_id)
        return [data for each, data in found if kind in (None, each)]

    def losses(self, job_id: str) -> dict[int, float]:
        """Step → loss, exact; a step that was done again counts as it was done last."""
        return {m["step"]: m["loss"] for m in self.events(job_id, "metrics") if "loss" in m}

    def trainer(self, job_id: str) -> Identity:
        """The trainer of the job's live attempt, once it was started."""
        query = (
            "SELECT handle FROM attempts WHERE job_id = :id AND finished_at IS NULL"
            " ORDER BY number DESC"
        )
        handle = self.when(job_id, lambda: one(query, id=job_id))
        return Identity(handle["data"]["pid"], handle["data"]["start"])

    def reach(self, job_id: str, step: int) -> None:
        """Wait until the job has told of this step."""
        self.when(job_id, lambda: max(self.losses(job_id), default=0) >= step)

    def story(self, job_id: str) -> str:
        """Everything that helps to see why a test failed."""
        logs = get_settings().home / "logs" / "supervisors"
        texts = [f"{p.name}: {p.read_text()[-3000:]}" for p in sorted(logs.glob("*.log"))]
        told = [str(each) for each in self.events(job_id)[-12:]]
        return "\n".join([*told, *texts])

    def attempts(self, job_id: str) -> list[str]:
        """Ids of the job's attempts, the first one first."""
        found = rows("SELECT id FROM attempts WHERE job_id = :id ORDER BY number", id=job_id)
        return [each for (each,) in found]

    def expire(self, attempt_id: str) -> None:
        """Let the lease run out while the host is cut off, and have the attempt taken over.

        As the reconciler does it: nobody is before the database has been up for one lease.
        """

        def taken_over() -> bool:
            query = "UPDATE attempts SET lease_expires_at = to_timestamp(0) WHERE id = :id"
            run_sql(query, id=attempt_id)
            with transaction() as session:
                return service.expire(session, attempt_id) is not None

        run_sql("UPDATE workers SET seen_at = to_timestamp(0)")
        wait_until(taken_over, timeout=90)
        run_sql("UPDATE workers SET seen_at = now()")

    def assert_clean(self, job_id: str) -> None:
        """Nothing of the job runs any more, and its devices are free."""
        wait_until(lambda: not supervisors(job_id, *self.attempts(job_id)))
        home = get_settings().home
        assert [pid for pid in _pids() if _stdout(pid).is_relative_to(home)] == []
        assert [p for each in self.attempts(job_id) for p in marked(each)] == []
        for attempt_id in self.attempts(job_id):
            note = get_settings().home / "attempts" / attempt_id / "run.json"
            if note.exists():
                data = json.loads(note.read_text())
                assert not is_alive(Identity(data["pid"], data["start"]))
        assert one("SELECT count(*) FROM devices WHERE attempt_id IS NOT NULL") == 0


def marked(attempt_id: str) -> list[int]:
    """Processes that were started with an attempt's mark."""
    wanted = f"{ATTEMPT_MARK}={attempt_id}".encode()
    return [pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0")]


def supervisors(*ids: str) -> list[int]:
    """Processes that write to the supervisor's log of one of these ids."""
    names = {f"{each}.log" for each in ids}
    return [pid for pid in _pids() if _stdout(pid).name in names]


def _stdout(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/fd/1").readlink()
    except OSError:
        return Path()


def _pids() -> list[int]:
    return [int(e.name) for e in os.scandir("/proc") if e.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_rig(folder: Path) -> Rig:
    """Write a tiny model with dropout and a small data set to `folder`.

    The model is also in a hub's cache there, as `shop/tiny` at COMMIT.
    """
    from tests.trainer_core.tiny import make_tiny_model

    make_tiny_model(folder / "model", attention_dropout=0.1)
    cached = folder / "hub" / "hub" / "models--shop--tiny"
    shutil.copytree(folder / "model", cached / "snapshots" / COMMIT)
    lines = [
        {"prompt": f"Where is order {n}?", "completion": f"Order {n} arrives on day {n * 7 % 31}."}
        for n in range(ROWS)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Rig(folder)


@contextmanager
def warm_server(folder: Path, hub: Path) -> Iterator[Path]:
    """A fork server whose hub is a cache; yields the path of its socket."""
    path = folder / "warm.sock"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "POLAR_WARM_SOCKET": str(path),
        "HF_HOME": str(hub),
        "HF_HUB_OFFLINE": "1",
        "AWS_SECRET_ACCESS_KEY": "must-not-be-here",
    }
    with (folder / "warm.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "warm"], env=environment, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: forks.ping(path) or process.poll() is not None, timeout=120)
        assert process.poll() is None, (folder / "warm.log").read_text()
        yield path
    finally:
        process.terminate()
        process.wait(10)


def host_online() -> None:
    """One host with one slot."""
    add_host(HOST, slots=1)


def new_secret(value: str) -> str:
    """Store a secret of the project; returns its name."""
    from app.secrets.service import put_secret

    name = new_id("sec")
    with transaction() as session:
        put_secret(session, PROJECT, name, value)
    return name
