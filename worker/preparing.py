"""What the supervisors of preparations and of plans have in common: sources, tokens, upload."""

import logging
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from app.attempts.service import LeaseLost
from app.jobs.lifecycle import FailureReason
from app.plans.pins import was_planned
from app.preparations.service import PreparationFailure
from app.settings import Settings
from app.storage import ChecksumMismatch, ObjectMissing, Store, StoreUnavailable, join_key
from trainer_core.data.key import content_key
from trainer_core.moved import present_place
from trainer_core.publish.manifest import write_durably
from trainer_core.spec import Launch
from worker import forks
from worker.blocks import BlockServer, Lent
from worker.durably import DatabaseAway, durably
from worker.endings import ending_of, ending_of_error, last_words
from worker.environment import bounds, memory_bound
from worker.fetch import prepared_prefix
from worker.holding import hold
from worker.inputs import JobFacts, preparation_launch
from worker.lease import LeaseKeeper
from worker.outages import through_outages
from worker.process import Exit, Order, TrainerProcess, start
from worker.redact import Redactor
from worker.transfer import download_folder, is_stored, is_whole, upload_folder
from worker.waiting import Stopped, TookTooLong, unless_stopped
from worker.watch import TICK

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


class PreparationFailed(Exception):
    """The trainer refused the data, or was lost."""

    def __init__(self, failure: PreparationFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What came of it."""

    result: Result


class DataSupervisor(ABC, Generic[Result]):
    """Holds the lease of something that prepares data, and sees it through."""

    def __init__(
        self, settings: Settings, store: Store, lease: tuple[str, str], keeper: LeaseKeeper
    ) -> None:
        self._settings = settings
        self._store = store
        self._id, self._token = lease
        self._keeper = keeper
        # Of this lease alone: one that was lost must not clear up under its successor.
        self._work = settings.home / "preparations" / f"{self._id}.{self._token[:8]}"
        self._redactor = Redactor(())
        self._deadline = time.monotonic() + settings.prepare_timeout

    def run(self) -> None:
        """See the preparation through; whatever happens, it ends."""
        ours = False
        try:
            self._end(self._prepare())
            ours = not self._keeper.lost.is_set()
        except (LeaseLost, DatabaseAway) as lost:
            _log.warning("nothing more to say: %s", lost)
        self._clear_up(ours=ours)

    def _clear_up(self, *, ours: bool) -> None:
        """Remove what this lease needed, and what killed holders of earlier ones left behind."""
        earlier = self._work.parent.glob(f"{self._id}.*")
        for folder in earlier if ours else [self._work]:
            shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self) -> Done[Result] | PreparationFailure | None:
        """Return the result, or why there is none; None when nobody waits for it."""
        self._work.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            job = durably(self._read)
            self._redactor = Redactor(job.secrets.values())
            return Done(self._work_on(job))
        except Stopped:
            return None
        except PreparationFailed as failed:
            return failed.failure
        except TookTooLong:
            message = f"preparing the data took longer than {self._settings.prepare_timeout:g} s"
            return PreparationFailure(FailureReason.STALLED, message)
        except (LeaseLost, DatabaseAway):
            raise
        except Exception as error:  # noqa: BLE001 - this process's one
            _log.exception("the preparation ends by an error of ours")
            ending = ending_of_error(error)
            return PreparationFailure(ending.reason, ending.message)

    @abstractmethod
    def _read(self, session: Session) -> JobFacts:
        """Read what is to be prepared; raises NotFound for a secret that is gone."""

    @abstractmethod
    def _announce(self, session: Session, job: JobFacts, key: str) -> None:
        """Say which prepared data are about to be used; raises LeaseLost and PreparationFailed."""

    @abstractmethod
    def _work_on(self, job: JobFacts) -> Result:
        """Do the work; raises PreparationFailed, Stopped, TookTooLong and whatever comes of it."""

    @abstractmethod
    def _finish(self, session: Session, result: Result) -> None:
        """Say what came of it; raises LeaseLost, as the two below."""

    @abstractmethod
    def _fail(self, session: Session, failure: PreparationFailure) -> None:
        """Say why nothing came of it."""

    @abstractmethod
    def _abandon(self, session: Session) -> None:
        """Let go of it."""

    def _prepared(self, job: JobFacts) -> tuple[Launch, Path, str]:
        """Prepare the data here and in the store, unless they are there; their folder and key."""
        patience = self._settings.store_patience
        launch, lent, key = unless_stopped(
            self._keeper, lambda: through_outages(lambda: self._inputs(job), patience), self._left()
        )
        _log.info("inputs are here, the key is %s", key)
        durably(lambda session: self._announce(session, job, key))
        folder = hold(self._settings.home / "prepared" / key)
        if not is_whole(folder):
            self._fetch_or_make(job, launch, lent, folder)
        _log.info("prepared")
        unless_stopped(
            self._keeper,
            lambda: through_outages(
                lambda: self._store_folder(folder, key, job.project_id), patience
            ),
            self._left(),
        )
        _log.info("stored")
        return launch, folder, key

    def _fetch_or_make(
        self, job: JobFacts, launch: Launch, lent: dict[str, Lent], folder: Path
    ) -> None:
        """From the store what another host has made for a plan, or made here."""
        prefix = prepared_prefix(job.project_id, folder.name)

        def fetched() -> bool:
            try:
                download_folder(self._store, prefix, folder)
            except (ObjectMissing, ChecksumMismatch) as error:
                _log.warning("prepared data in the store are not whole: %s", error)
                return False
            return True

        patience = self._settings.store_patience
        if durably(
            lambda session: was_planned(session, job.project_id, folder.name)
        ) and unless_stopped(
            self._keeper, lambda: through_outages(fetched, patience), self._left()
        ):
            _log.info("fetched from the store")
            return
        path = self._write(launch)
        with self._blocks(lent) as blocks:
            # The store's client and its connection are made while the trainer works.
            threading.Thread(target=self._meet_the_store, args=[folder.name], daemon=True).start()
            self._run(job, launch, ["prepare", str(path), "--out", str(folder)], blocks)

    def _meet_the_store(self, key: str) -> None:
        with suppress(StoreUnavailable):
            self._store.head(join_key(key))

    def _write(self, launch: Launch) -> Path:
        path = self._work / "launch.json"
        write_durably(path, launch.model_dump_json().encode())
        return path

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _inputs(self, job: JobFacts) -> tuple[Launch, dict[str, Lent], str]:
        launch, lent = preparation_launch(self._settings, self._store, job, self._work)
        model = _tokenizer_folder(launch)
        return launch, lent, content_key(launch, model, job.secrets)

    @contextmanager
    def _blocks(self, lent: dict[str, Lent]) -> Iterator[BlockServer | None]:
        """Who gives the bytes of streams; None where there are none."""
        if not lent:
            yield None
            return
        with BlockServer(self._work, lent, self._settings.store_patience) as blocks:
            yield blocks
            _log.info("%d bytes of objects were read", blocks.given)

    def _run(
        self, job: JobFacts, launch: Launch, argv: list[str], blocks: BlockServer | None
    ) -> None:
        """Run a trainer in the work folder to its end; raises PreparationFailed."""
        order = Order(
            argv=argv,
            mark=launch.attempt_id,
            cwd=self._work,
            log=self._work / "output.log",
            secrets=job.secrets,
            bounds=bounds(self._settings, self._work) | memory_bound(self._settings),
        )
        process = start(order, forks.socket_path(self._settings))
        if blocks is not None:
            blocks.serve(process.identity.pid)
        try:
            ended = self._watch(process)
        finally:
            process.kill()
            process.close()
        self._refuse_what_does_not_fit(ended)
        ending = ending_of(ended, last_words(self._work, None, self._redactor), oom_killed=False)
        if ended.code != 0 and ending is not None:
            _log.warning("preparing failed: %s\n%s", ending, self._last_output())
            raise PreparationFailed(PreparationFailure(ending.reason, ending.message))

    def _refuse_what_does_not_fit(self, ended: Exit) -> None:
        """The tokenizer's library ends its process where an allocation is refused."""
        if ended.code == -signal.SIGABRT and "memory allocation of" in self._last_output():
            message = (
                "preparing the data needs more memory than it may have "
                "(POLAR_PREPARE_MEMORY_GB): a row of it is too large"
            )
            raise PreparationFailed(PreparationFailure(FailureReason.OUT_OF_MEMORY, message))

    def _watch(self, process: TrainerProcess) -> Exit:
        while (ended := process.poll()) is None:
            if self._keeper.stopping:
                process.terminate()
                process.wait(1.0)
                raise Stopped
            if self._left() <= 0:
                raise TookTooLong
            self._keeper.pause(TICK / 10)
        return ended

    def _store_folder(self, folder: Path, key: str, project_id: str) -> None:
        prefix = prepared_prefix(project_id, key)
        if not is_stored(self._store, prefix):
            upload_folder(self._store, folder, prefix)

    def _last_output(self) -> str:
        path = self._work / "output.log"
        text = path.read_bytes()[-4000:].decode(errors="replace") if path.exists() else ""
        return self._redactor.text(text)

    def _end(self, ended: Done[Result] | PreparationFailure | None) -> None:
        self._keeper.stop()
        give_up = self._keeper.abandoned.is_set
        if self._keeper.lost.is_set():
            return
        match ended:
            case None:
                durably(self._abandon, give_up=give_up)
            case PreparationFailure():
                durably(lambda session: self._fail(session, ended), give_up=give_up)
            case Done(result):
                durably(lambda session: self._finish(session, result), give_up=give_up)


def _tokenizer_folder(launch: Launch) -> Path | None:
    if launch.paths.model is not None:
        return Path(launch.paths.model)
    if launch.spec.model.source == "folder":
        return Path(present_place(launch.spec.model.name_or_path, launch.paths.moved))
    return None
