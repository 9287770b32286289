"""Uploads checkpoints in the background and makes them exist by committing their manifests."""

import contextlib
import logging
import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.attempts import service
from app.attempts.service import LeaseLost, StoredCheckpoint
from app.settings import get_settings
from app.storage import ObjectMissing, Patience, Store, StoreUnavailable
from trainer_core.publish.manifest import BrokenFolder
from worker.durably import DatabaseAway, durably
from worker.transfer import Stored, upload_folder

UPLOADING = "uploading"
_ROUND, _PAUSE = 60.0, 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """A checkpoint that the trainer has written; `folder` is ours: it may prune its own."""

    step: int
    folder: Path


@dataclass
class _Queue:
    """What the thread works on, changed under one lock: one checkpoint, and one that waits."""

    waiting: Written | None = None
    busy: bool = False
    over: bool = False
    skipped: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)


class CheckpointUploader:
    """One thread, one checkpoint after the other; a newer one replaces the one that waits.

    The training never waits for the store, and a slow store costs the disk two checkpoints at most,
    kept by hard links below `uploading/`: the one under way is finished whatever the trainer
    prunes. While the store is away the newest is tried again and again, and a warning says so.
    """

    def __init__(self, store: Store, attempt_id: str, token: str, prefix: str) -> None:
        self._store = store
        self._attempt_id = attempt_id
        self._token = token
        self._prefix = prefix
        self._queue = _Queue()
        self._newest_stored: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def add(self, work: Path, event: dict[str, Any]) -> None:
        """Take a `checkpoint` event's folder below `work`; returns at once."""
        self.add_folder(work, int(event["step"]), work / str(event["path"]))

    def add_folder(self, work: Path, step: int, folder: Path) -> None:
        """Take the checkpoint of a step, wherever it lies on this host."""
        ours = work / UPLOADING / f"step-{step:08d}"
        try:
            written = Written(step, link_folder(folder, ours))
        except FileNotFoundError:
            _log.warning("the checkpoint of step %d is pruned already", step)
            return
        queue = self._queue
        with queue.changed:
            if queue.over:
                _drop(written)
                return
            if queue.waiting is not None:
                queue.skipped.append(queue.waiting.step)
                _drop(queue.waiting)
            queue.waiting = written
            queue.changed.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until everything is uploaded; False when that took too long."""
        queue = self._queue
        with queue.changed:
            return queue.changed.wait_for(
                lambda: queue.over or not (queue.busy or queue.waiting), max(0.0, timeout)
            )

    def stop(self) -> None:
        """Begin nothing more."""
        self._stop.set()
        with self._queue.changed:
            self._queue.changed.notify_all()

    def _run(self) -> None:
        queue = self._queue
        try:
            while (written := self._next()) is not None:
                try:
                    self._keep(written)
                finally:
                    _drop(written)
        finally:  # nobody must wait for a thread that has ended
            with queue.changed:
                queue.over, queue.busy = True, False
                queue.changed.notify_all()
                if queue.waiting is not None:
                    _drop(queue.waiting)

    def _next(self) -> Written | None:
        queue = self._queue
        with queue.changed:
            queue.busy = False
            queue.changed.notify_all()
            queue.changed.wait_for(lambda: queue.waiting is not None or self._stop.is_set())
            if self._stop.is_set():
                return None
            written, queue.waiting, queue.busy = queue.waiting, None, True
            return written

    def _keep(self, written: Written) -> None:
        try:
            stored = self._upload(written)
            if stored is not None:
                self._commit(written.step, stored)
        except (BrokenFolder, OSError) as error:
            _log.warning("checkpoint of step %d is skipped: %s", written.step, error)
        except (LeaseLost, DatabaseAway) as error:
            _log.warning("checkpoint of step %d: %s", written.step, error)
            self._stop.set()
        except Exception as error:  # noqa: BLE001 - this thread's one: the next may be stored
            _log.exception("checkpoint of step %d", written.step)
            self._warn(
                "checkpoint_not_stored",
                f"the checkpoint of step {written.step} is not stored: {type(error).__name__}: "
                f"{error}; the next one is tried",
            )

    def _upload(self, written: Written) -> Stored | None:
        """Upload until it is done; None when it was given up: a newer one waits, or we stop.

        A store that has lost parts of it gets them again.
        """
        prefix = f"{self._prefix}checkpoints/step-{written.step:08d}/"
        said = False
        while True:
            try:
                a_round = Patience(_ROUND, self._stop)
                return upload_folder(self._store, written.folder, prefix, a_round)
            except (StoreUnavailable, ObjectMissing) as error:
                if not said:
                    self._warn(
                        "checkpoint_not_stored",
                        f"the checkpoint of step {written.step} stays on the worker: {error}",
                    )
                said = True
            if self._queue.waiting is not None or self._stop.wait(_PAUSE):
                return None

    def _commit(self, step: int, stored: Stored) -> None:
        made = StoredCheckpoint(
            step, stored.prefix, stored.manifest_sha256, stored.manifest.total_bytes
        )
        retired = durably(
            lambda session: service.commit_checkpoint(session, self._attempt_id, self._token, made),
            give_up=self._stop.is_set,
        )
        self._newest_stored = step
        self._tell_of_skipped()
        for old in retired:
            self._delete(old)

    def _tell_of_skipped(self) -> None:
        with self._queue.changed:
            skipped, self._queue.skipped = self._queue.skipped, []
        if skipped:
            steps = ", ".join(map(str, skipped))
            self._warn(
                "checkpoint_skipped",
                f"storing a checkpoint takes longer than the time between two: step {steps} stayed "
                f"on the worker; the newest that is stored is of step {self._newest_stored}",
            )

    def _delete(self, prefix: str) -> None:
        try:
            self._store.delete_prefix(prefix)
            durably(lambda session: service.mark_purged(session, prefix), patience=5.0)
        except (StoreUnavailable, DatabaseAway) as error:
            _log.warning("%s was retired and is left to housekeeping: %s", prefix, error)

    def _warn(self, code: str, message: str) -> None:
        try:
            durably(
                lambda session: service.warn(session, self._attempt_id, self._token, code, message),
                patience=5.0,
            )
        except (LeaseLost, DatabaseAway) as error:
            _log.warning("%s (%s)", message, error)


def link_folder(folder: Path, target: Path) -> Path:
    """Give the files of `folder` a second name below `target`; returns where they are then.

    That is `folder` itself on a file system that knows no hard links. Raises FileNotFoundError when
    a file vanishes meanwhile; nothing stays of `target` then.
    """
    shutil.rmtree(target, ignore_errors=True)
    try:
        for path in [folder, *sorted(folder.rglob("*"))]:
            copy = target / path.relative_to(folder)
            if path.is_dir():
                copy.mkdir(parents=True)
            else:
                os.link(path, copy)
        if not target.exists():
            raise FileNotFoundError(folder)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, FileNotFoundError):
            raise
        return folder
    return target


def _drop(written: Written) -> None:
    if written.folder.parent.name == UPLOADING:
        shutil.rmtree(written.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another one is in it
            written.folder.parent.rmdir()


def patiently_upload(store: Store, folder: Path, prefix: str) -> Stored:
    """Upload a folder and wait out an outage of the store; raises StoreUnavailable after it."""
    return upload_folder(store, folder, prefix, patience())


def patience() -> Patience:
    """Return how long what must be stored waits for the store."""
    return Patience(get_settings().store_patience)
