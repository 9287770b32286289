"""One preparation from its claim to its end: sources, tokens, upload, report."""

import json
import logging
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.attempts.service import LeaseLost
from app.jobs.lifecycle import FailureReason
from app.preparations import service
from app.preparations.service import PreparationFailure
from app.settings import Settings
from app.storage import Store, StoreUnavailable, join_key
from trainer_core.data.key import content_key
from trainer_core.moved import present_place
from trainer_core.publish.manifest import MANIFEST, write_durably
from trainer_core.spec import Launch
from worker import forks
from worker.blocks import BlockServer, Lent
from worker.durably import DatabaseAway, durably
from worker.endings import ending_of, ending_of_error, last_words
from worker.environment import bounds, memory_bound
from worker.fetch import prepared_prefix
from worker.holding import hold
from worker.inputs import JobFacts, preparation_launch, read_job
from worker.lease import LeaseKeeper
from worker.outages import through_outages
from worker.process import Exit, Order, TrainerProcess, start
from worker.redact import Redactor
from worker.transfer import is_whole, upload_folder
from worker.waiting import Stopped, TookTooLong, unless_stopped
from worker.watch import TICK

_log = logging.getLogger(__name__)


class PreparationFailed(Exception):
    """The trainer refused the data, or was lost."""

    def __init__(self, failure: PreparationFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class PreparationSupervisor:
    """Holds the lease of one job's preparation and sees it through."""

    def __init__(
        self, settings: Settings, store: Store, lease: tuple[str, str], keeper: LeaseKeeper
    ) -> None:
        self._settings = settings
        self._store = store
        self._job_id, self._token = lease
        self._keeper = keeper
        # Of this lease alone: one that was lost must not clear up under its successor.
        self._work = settings.home / "preparations" / f"{self._job_id}.{self._token[:8]}"
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
        earlier = self._work.parent.glob(f"{self._job_id}.*")
        for folder in earlier if ours else [self._work]:
            shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self) -> "tuple[str, dict[str, Any]] | PreparationFailure | None":
        """Return key and report, or why there are none; None when nobody waits for them."""
        self._work.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            job = durably(lambda session: read_job(session, self._job_id))
            self._redactor = Redactor(job.secrets.values())
            return self._work_on(job)
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

    def _work_on(self, job: JobFacts) -> tuple[str, dict[str, Any]]:
        patience = self._settings.store_patience
        launch, lent, key = unless_stopped(
            self._keeper, lambda: through_outages(lambda: self._inputs(job), patience), self._left()
        )
        _log.info("inputs are here, the key is %s", key)
        durably(
            lambda session: service.announce(
                session, self._job_id, self._token, job.project_id, key
            )
        )
        folder = hold(self._settings.home / "prepared" / key)
        if not is_whole(folder):
            with self._blocks(lent) as blocks:
                self._tokenise(job, launch, folder, blocks)
        _log.info("prepared")
        unless_stopped(
            self._keeper,
            lambda: through_outages(
                lambda: self._store_folder(folder, key, job.project_id), patience
            ),
            self._left(),
        )
        _log.info("stored")
        report: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
        return key, report

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

    def _tokenise(
        self, job: JobFacts, launch: Launch, folder: Path, blocks: BlockServer | None
    ) -> None:
        path = self._work / "launch.json"
        write_durably(path, launch.model_dump_json().encode())
        order = Order(
            argv=["prepare", str(path), "--out", str(folder)],
            mark=launch.attempt_id,
            cwd=self._work,
            log=self._work / "output.log",
            secrets=job.secrets,
            bounds=bounds(self._settings, self._work) | memory_bound(self._settings),
        )
        process = start(order, forks.socket_path(self._settings))
        if blocks is not None:
            blocks.serve(process.identity.pid)
        # The store's client and its connection are made while the trainer works.
        threading.Thread(target=self._meet_the_store, args=[folder.name], daemon=True).start()
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

    def _meet_the_store(self, key: str) -> None:
        with suppress(StoreUnavailable):
            self._store.head(join_key(key))

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
        if self._store.head(join_key(prefix + MANIFEST)) is None:
            upload_folder(self._store, folder, prefix)

    def _last_output(self) -> str:
        path = self._work / "output.log"
        text = path.read_bytes()[-4000:].decode(errors="replace") if path.exists() else ""
        return self._redactor.text(text)

    def _end(self, result: "tuple[str, dict[str, Any]] | PreparationFailure | None") -> None:
        self._keeper.stop()
        job_id, token, give_up = self._job_id, self._token, self._keeper.abandoned.is_set
        if self._keeper.lost.is_set():
            return
        match result:
            case None:
                durably(lambda s: service.abandon_preparation(s, job_id, token), give_up=give_up)
            case PreparationFailure():
                durably(
                    lambda s: service.fail_preparation(s, job_id, token, result), give_up=give_up
                )
            case key, report:
                clean = self._redactor.data(report)
                durably(
                    lambda s: service.finish_preparation(s, job_id, token, key, clean),
                    give_up=give_up,
                )


def _tokenizer_folder(launch: Launch) -> Path | None:
    if launch.paths.model is not None:
        return Path(launch.paths.model)
    if launch.spec.model.source == "folder":
        return Path(present_place(launch.spec.model.name_or_path, launch.paths.moved))
    return None
