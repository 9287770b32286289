"""One attempt from its claim to its end: inputs, trainer, facts, checkpoints, model, clean-up."""

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from app.attempts import service
from app.attempts.service import Claim, Ending, LeaseLost
from app.db import transaction
from app.jobs.lifecycle import TERMINAL, FailureReason, Status
from app.settings import Settings
from app.storage import Store
from trainer_core.best import FOLDER as BEST
from trainer_core.events import RunEvent
from trainer_core.spec import Launch
from worker.carrier import Carrier
from worker.durably import PATIENCE, DatabaseAway, durably
from worker.endings import ending_of, ending_of_error, last_words
from worker.fetch import attempt_prefix
from worker.gpus import require_free
from worker.inputs import JobFacts, attempt_launch, read_job
from worker.lease import LeaseKeeper
from worker.outages import through_outages
from worker.process import Exit
from worker.publish import MODEL, numbers, upload_model
from worker.redact import Redactor
from worker.resume import CHECKPOINTS, unstored_step
from worker.target import Handle, TargetError
from worker.targets.local import LocalTarget
from worker.telemetry import Telemetry
from worker.upload import UPLOADING, CheckpointUploader
from worker.waiting import Stopped, TookTooLong, unless_stopped
from worker.watch import NoSignOfLife, Watch, work_folder

TELEMETRY_EVERY = 5.0
LAST_UPLOAD_STOPPED = 5.0
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How the trainer ended, whether memory ran out just then, and why we ended it, if we did."""

    exit: Exit
    out_of_memory: bool
    verdict: Ending | None


class AttemptSupervisor:
    """Holds the lease of one attempt and sees it through."""

    def __init__(self, settings: Settings, store: Store, claim: Claim, keeper: LeaseKeeper) -> None:
        self._settings = settings
        self._store = store
        self._claim = claim
        self._keeper = keeper
        self._work = work_folder(settings.home, claim.attempt_id)
        self._cleanup_error: str | None = None
        prefix = attempt_prefix(claim.project_id, claim.job_id, claim.attempt_id)
        self._uploader = CheckpointUploader(store, claim.attempt_id, claim.token, prefix)

    def run(self) -> None:
        """See the attempt through: whatever happens, it ends and its devices are given back."""
        try:
            ending = self._attempt()
            status = Status.SUCCEEDED if ending is None else self._finish(ending)
            self._tidy(status)
        except (LeaseLost, DatabaseAway) as lost:
            _log.warning("nothing more to say: %s", lost)
        finally:
            self._uploader.stop()
        self._release()

    def _attempt(self) -> Ending | None:
        """Return why the attempt failed, None when its model is published."""
        self._work.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            job = durably(lambda session: read_job(session, self._claim.job_id))
            launch = unless_stopped(
                self._keeper,
                lambda: through_outages(lambda: self._launch_of(job), self._patience()),
                self._settings.fetch_timeout,
            )
            _log.info("inputs are here")
            self._store_what_was_left(launch)
            if self._keeper.stopping:
                return self._stopped()
            return self._train(job, launch)
        except Stopped:
            return self._stopped()
        except TookTooLong as late:
            message = f"the run's inputs were not here in time: {late}"
            return Ending("failed", FailureReason.START_TIMEOUT, message)
        except (LeaseLost, DatabaseAway):
            raise
        except Exception as error:  # noqa: BLE001 - this process's one: every attempt gets an end
            _log.exception("the attempt ends by an error of ours")
            return ending_of_error(error)

    def _launch_of(self, job: JobFacts) -> Launch:
        return attempt_launch(self._settings, self._store, self._claim, job, self._work)

    def _store_what_was_left(self, launch: Launch) -> None:
        """Bring up the checkpoint of an earlier attempt that had no time to store it itself."""
        folder = Path(launch.paths.resume_from) if launch.paths.resume_from else None
        if folder is None or folder.is_relative_to(self._work):  # it came from the store
            return
        step = durably(lambda session: unstored_step(session, folder))
        if step is not None:
            self._uploader.add_folder(self._work, step, folder)

    def _train(self, job: JobFacts, launch: Launch) -> Ending | None:
        self._kill_orphans(job)
        require_free(job.cuda_devices, self._keeper)
        carrier = Carrier(
            self._work, self._claim.attempt_id, self._claim.token, Redactor(job.secrets.values())
        )
        try:
            outcome = self._run(job, launch, carrier, warm=not job.cold)
        except NoSignOfLife:
            outcome = self._run(job, launch, carrier, warm=False)
        return self._conclude(job, carrier, outcome)

    def _run(self, job: JobFacts, launch: Launch, carrier: Carrier, *, warm: bool) -> Outcome:
        target = LocalTarget(self._settings, job.secrets, warm=warm)
        handle = target.launch(launch, job.spec.compute)
        process = target.process(handle)
        _log.info("trainer %d started %s", process.identity.pid, process.how)
        self._note(handle)
        ended = threading.Event()
        sampler = threading.Thread(
            target=self._sample,
            args=(Telemetry(process.identity, handle.label, launch.devices), ended),
            name="telemetry",
            daemon=True,
        )
        sampler.start()
        watch = Watch(self._settings, self._keeper, carrier, process, self._see)
        watch.time_left = job.time_left
        try:
            exit_ = watch.until_end()
            self._cleanup_error, out_of_memory = watch.cleanup_error, watch.out_of_memory
            watch.drain()
        except TargetError as error:
            self._cleanup_error = str(error)
            raise
        finally:
            ended.set()
            process.close()
        return Outcome(exit_, out_of_memory, watch.verdict)

    def _see(self, event: RunEvent) -> None:
        if event.type == "checkpoint":
            self._uploader.add(self._work, event.data)

    def _conclude(self, job: JobFacts, carrier: Carrier, outcome: Outcome) -> Ending | None:
        _log.info("trainer ended: %s", outcome.exit)
        said = last_words(self._work, carrier.result, Redactor(job.secrets.values()))
        ending = ending_of(outcome.exit, said, oom_killed=outcome.out_of_memory)
        if ending is not None and outcome.verdict is not None:
            ending = outcome.verdict
        self._uploader.drain(self._patience())
        if ending is not None:
            return ending
        try:
            return None if self._publish(job, carrier) else self._stopped()
        except TookTooLong as late:
            message = f"the model was not stored in time: {late}"
            return Ending("failed", FailureReason.STORE_UNAVAILABLE, message)

    def _patience(self) -> float:
        """Return how long the last checkpoints may take: whoever goes on elsewhere needs them."""
        if self._keeper.cancelled.is_set():
            return LAST_UPLOAD_STOPPED
        if self._keeper.abandoned.is_set():  # the machine goes down, and waits for so long
            return max(LAST_UPLOAD_STOPPED, self._settings.grace - self._keeper.stopping_for)
        return self._settings.store_patience

    def _publish(self, job: JobFacts, carrier: Carrier) -> bool:
        """Upload, then let one commit decide between the model and a cancel."""
        if self._keeper.stopping or not self._say(service.finalize):
            return False
        made = unless_stopped(
            self._keeper,
            lambda: upload_model(self._store, self._claim, job, self._work),
            self._settings.publish_timeout,
        )
        _log.info("model uploaded to %s", made.prefix)
        made = replace(made, metrics=numbers(carrier.metrics))
        self._keeper.stop()  # the lease lasts; after the commit it is nobody's
        return self._say(service.commit_model, made)

    def _note(self, handle: Handle) -> None:
        try:
            self._say(service.record_handle, asdict(handle), patience=1.0)
        except DatabaseAway as error:
            _log.warning("the handle is not recorded: %s", error)

    def _say(self, what: Callable[..., T], /, *arguments: Any, patience: float = PATIENCE) -> T:
        """Call a service function as the lease's holder, however long the database is away."""
        return durably(
            lambda session: what(session, self._claim.attempt_id, self._claim.token, *arguments),
            patience=patience,
            give_up=self._keeper.abandoned.is_set,
        )

    def _sample(self, telemetry: Telemetry, ended: threading.Event) -> None:
        while not ended.wait(TELEMETRY_EVERY):
            sample = telemetry.sample()
            try:
                with transaction() as session:
                    service.record_telemetry(
                        session, self._claim.attempt_id, self._claim.token, sample
                    )
            except (SQLAlchemyError, LeaseLost) as error:
                _log.debug("no telemetry: %s", error)

    def _kill_orphans(self, job: JobFacts) -> None:
        """Earlier trainers of the job died with their supervisors; what did not, dies now."""
        target = LocalTarget(self._settings)
        for attempt_id in job.earlier:
            for handle in target.sweep(attempt_id):
                _log.warning("killing an orphan of %s: %s", attempt_id, handle.data)
                target.stop(handle)

    def _finish(self, ending: Ending) -> Status:
        _log.info("ends: %s", ending)
        self._keeper.stop()
        return self._say(service.finish, ending)

    def _release(self) -> None:
        try:
            durably(
                lambda session: service.release(
                    session, self._claim.attempt_id, self._cleanup_error
                ),
                give_up=self._keeper.abandoned.is_set,
            )
        except DatabaseAway as error:
            _log.warning("not released, the reconciler will: %s", error)

    def _tidy(self, status: Status) -> None:
        """Delete big files that nobody resumes from any more; facts and logs stay."""
        if status not in TERMINAL:
            return
        with transaction() as session:
            attempts = service.attempts_of(session, self._claim.job_id)
        for attempt_id in attempts:
            folder = work_folder(self._settings.home, attempt_id)
            for name in (CHECKPOINTS, MODEL, UPLOADING, BEST, "resume"):
                shutil.rmtree(folder / name, ignore_errors=True)

    def _stopped(self) -> Ending:
        message = "stopped together with its worker"
        if self._keeper.paused.is_set():
            message = "stopped for a pause"
        elif self._keeper.handed_back.is_set():
            message = "handed back: its host is being drained"
        return Ending("interrupted", FailureReason.INTERRUPTED, message)
