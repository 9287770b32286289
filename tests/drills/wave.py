"""Seven jobs, each caught in its moment, so that one fault hits all moments at once."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from polar import ApiError, Unreachable
from tests.drills.cells import Moment
from tests.drills.stack import DrillWorld
from tests.services import wait_until

T = TypeVar("T")
STEPS, SAVE_STEPS = 24, 8
ENDLESS = 50_000
IN_SLOTS: tuple[Moment, ...] = ("training", "checkpoint", "publish", "cancel")
PATIENCE = 120.0


def persist(call: Callable[[], T], patience: float = PATIENCE) -> T:
    """Call the API as a client would that does not give up while it is away or unwell."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return call()
        except Unreachable:
            if time.monotonic() > deadline:
                raise
        except ApiError as error:
            if error.status < 500 or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


@dataclass
class Case:
    """One job of a wave, in its moment."""

    moment: Moment
    job_id: str
    missed: int = 0
    seconds: float = 0.0  # from the fault to the job's end


@dataclass
class Held:
    """Processes that stand still until the fault comes."""

    processes: list[psutil.Process] = field(default_factory=list)

    def hold(self, process: psutil.Process) -> None:
        """Stop a process; one that has ended meanwhile is none to hold."""
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            self.processes.append(process)

    def release(self) -> None:
        """Let all of them go on."""
        while self.processes:
            with suppress(psutil.NoSuchProcess):
                self.processes.pop().resume()


class Wave:
    """Brings jobs to their moments, lets go of them, and waits for their ends."""

    def __init__(self, world: DrillWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.cases: dict[Moment, Case] = {}
        self.held = Held()
        self._threads: list[threading.Thread] = []
        self._began = 0.0

    # -- what is submitted ----------------------------------------------------------------------

    def spec(self, moment: Moment, missed: int = 0) -> dict[str, Any]:
        """A job of a second; the one that is caught while preparing has data of its own.

        The one that is to be cancelled would run for ever: a cancel that comes late must count.
        """
        own, endless = moment == "prepare", moment == "cancel"
        spec = self.world.spec(
            steps=ENDLESS if endless else STEPS,
            rows="own.jsonl" if own else "rows.jsonl",
            task={"max_length": 100 + self.number + 100 * missed if own else 64},
            training={"lr_scheduler_type": "constant"},  # the loss is the same for any length
            checkpoint={"save_steps": 250 if endless else SAVE_STEPS},
            retry={"max_attempts": 6},
        )
        spec["adapter"]["lora_dropout"] = 0.2  # its random numbers must be resumed, too
        spec["name"] = f"{moment}-{self.number}"
        return spec

    def submit(self, moment: Moment, missed: int = 0) -> Case:
        """Submit the moment's job, however often that takes; it is one job.

        `missed`: so many before it were through their moment before they could be held.
        """
        key = f"drill-{self.number}-{moment}-{missed}-{os.getpid()}"
        job = persist(lambda: self.world.client.submit(self.spec(moment, missed), key))
        case = Case(moment, str(job["id"]), missed)
        self.cases[moment] = case
        return case

    # -- bringing jobs to their moments ---------------------------------------------------------

    def gather(self) -> None:
        """Have a job in each moment, all of them standing still."""
        for moment in IN_SLOTS:
            self.submit(moment)
        trainers = self._hold_in_training()
        self._await_queued(self.submit("queue"))
        self._hold_preparing(self.submit("prepare"))
        self._advance(trainers["checkpoint"], "checkpoint")
        self._advance(trainers["publish"], "publish")

    def _hold_in_training(self) -> dict[Moment, psutil.Process]:
        """Stop each trainer right behind its first step; returns them."""
        waiting = {self.cases[moment].job_id: moment for moment in IN_SLOTS}
        folders: dict[str, Path] = {}
        found: dict[Moment, psutil.Process] = {}
        deadline = time.monotonic() + PATIENCE
        while waiting:
            assert time.monotonic() < deadline, f"never in training: {waiting}"
            if set(waiting) - set(folders):
                folders |= self._folders(set(waiting) - set(folders))
            for job_id in list(waiting):
                try:
                    trainer = self._stop_once(folders.get(job_id), '"type":"metrics"')
                except psutil.NoSuchProcess:
                    moment = waiting.pop(job_id)
                    again = self.submit(moment, self.cases[moment].missed + 1)
                    waiting[again.job_id] = moment
                    continue
                if trainer is not None:
                    found[waiting.pop(job_id)] = trainer
            time.sleep(0.002)
        return found

    def _folders(self, jobs: set[str]) -> dict[str, Path]:
        rows = self.world.sql(
            "SELECT job_id, id FROM attempts WHERE job_id = ANY(%s) AND finished_at IS NULL",
            list(jobs),
        )
        folders = {job_id: self.world.inside("attempts") / attempt for job_id, attempt in rows}
        return {job: folder for job, folder in folders.items() if (folder / "run.json").exists()}

    def _stop_once(self, folder: Path | None, word: str) -> psutil.Process | None:
        """Stop the trainer of a folder if it has said `word`; NoSuchProcess: it has ended."""
        if folder is None or not _said(folder, word):
            return None
        process = psutil.Process(json.loads((folder / "run.json").read_text())["pid"])
        process.suspend()
        self.held.processes.append(process)
        return process

    def _await_queued(self, case: Case) -> None:
        """Wait until only the devices are missing."""
        wait_until(
            lambda: self.world.sql(
                "SELECT 1 FROM jobs WHERE id = %s AND status = 'queued' AND prepared_key IS NOT"
                " NULL AND waiting_for IS NOT NULL",
                case.job_id,
            ),
            timeout=PATIENCE,
        )

    def _hold_preparing(self, case: Case) -> None:
        """Stop the process that prepares the job's data."""
        folder = self.world.inside("preparations")
        deadline = time.monotonic() + PATIENCE
        while not (found := self.preparing(case.job_id)):
            assert time.monotonic() < deadline, f"never prepared below {folder}"
            if self._is_prepared(case):
                case = self.submit("prepare", case.missed + 1)
            time.sleep(0.005)
        for process in found:
            self.held.hold(process)

    def _is_prepared(self, case: Case) -> bool:
        query = "SELECT 1 FROM jobs WHERE id = %s AND prepared_key IS NOT NULL"
        return bool(self.world.sql(query, case.job_id))

    def _advance(self, trainer: psutil.Process, moment: Moment) -> None:
        """Let a trainer go on to the moment, its supervisor not having seen that yet."""
        job_id = self.cases[moment].job_id
        supervisors = self.supervisors(job_id)
        for process in supervisors:
            self.held.hold(process)
        folder = self._folders({job_id})[job_id]
        self.held.processes.remove(trainer)
        trainer.resume()
        word = {"checkpoint": '"type":"checkpoint"', "publish": '"type":"result"'}[moment]
        deadline = time.monotonic() + PATIENCE
        while not _said(folder, word):
            assert time.monotonic() < deadline, f"never at {moment}"
            time.sleep(0.002)
        if moment == "checkpoint":
            self.held.hold(trainer)

    # -- processes of the jobs ------------------------------------------------------------------

    def supervisors(self, *jobs: str) -> list[psutil.Process]:
        """The lease holders of these jobs (default: all of the wave), preparing ones too."""
        names = self._names(jobs)
        return [each for each in _named("polar-lease") if _output_of(each) in names]

    def preparing(self, job_id: str) -> list[psutil.Process]:
        """The trainer processes that prepare a job's data."""
        return [
            each
            for each in psutil.process_iter()
            if f"/preparations/{job_id}" in _folder_of(each) and _name(each) != "polar-lease"
        ]

    def trainers(self) -> list[psutil.Process]:
        """Every trainer of the wave, preparing ones too."""
        names = self._names(())
        found = []
        for each in psutil.process_iter():
            if Path(_folder_of(each)).name.partition(".")[0] in names:
                found.append(each)
        return [each for each in found if _name(each) != "polar-lease"]

    def _names(self, jobs: tuple[str, ...]) -> set[str]:
        wanted = list(jobs or (case.job_id for case in self.cases.values()))
        rows = self.world.sql("SELECT id FROM attempts WHERE job_id = ANY(%s)", wanted)
        return {*wanted, *(row[0] for row in rows)}

    # -- the fault and after --------------------------------------------------------------------

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let go of everything, submit and cancel meanwhile; the fault is the block."""
        self._began = time.monotonic()
        for work in (self._submit_now, self._cancel_now):
            thread = threading.Thread(target=work, name=work.__name__, daemon=True)
            self._threads.append(thread)
        yield
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} has no answer after {PATIENCE:g} s"

    def give_up(self) -> None:
        """Cancel what is still open, so that a wave that failed does not stand in others' way."""
        self.held.release()
        for case in list(self.cases.values()):
            with suppress(ApiError, Unreachable):
                self.world.client.cancel(case.job_id)

    def let_go(self) -> None:
        """Begin to submit and to cancel, and let all processes run; again is silent."""
        for thread in self._threads:
            if thread.ident is None:
                thread.start()
        self.held.release()

    def _submit_now(self) -> None:
        self.submit("submit")

    def _cancel_now(self) -> None:
        persist(lambda: self.world.client.cancel(self.cases["cancel"].job_id))

    def await_ends(self, patience: float = PATIENCE) -> None:
        """Wait until every job has ended, and note how long each took."""
        deadline = time.monotonic() + patience
        waiting = {case.job_id: case for case in self.cases.values()}
        assert len(waiting) == 7, f"only {sorted(self.cases)} were submitted"
        while waiting:
            for job_id, status in self._ended(list(waiting)):
                if status is not None:
                    waiting.pop(job_id).seconds = time.monotonic() - self._began
            assert time.monotonic() < deadline, self._standing(list(waiting))
            time.sleep(0.05)

    def _ended(self, jobs: list[str]) -> list[tuple[Any, ...]]:
        return self.world.sql(
            "SELECT id, status FROM jobs WHERE id = ANY(%s) AND finished_at IS NOT NULL", jobs
        )

    def _standing(self, jobs: list[str]) -> str:
        rows = self.world.sql(
            "SELECT name, id, status, phase, waiting_for FROM jobs WHERE id = ANY(%s)", jobs
        )
        return f"still open: {rows}"


def _said(folder: Path, word: str) -> bool:
    said = folder / "events.jsonl"
    return said.exists() and word in said.read_text(encoding="utf-8")


def _named(name: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter() if _name(each) == name]


def _name(process: psutil.Process) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/comm").read_text(encoding="utf-8").strip()
    return ""


def _folder_of(process: psutil.Process) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{process.pid}/cwd").readlink())
    return ""


def _output_of(process: psutil.Process) -> str:
    """Whose supervisor a process is, by the log that it writes to."""
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/fd/1").readlink().stem
    return ""
