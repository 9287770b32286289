"""Uploads checkpoints in the background and makes them exist by committing their manifests."""

import logging
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.attempts import service
from app.attempts.service import LeaseLost, StoredCheckpoint
from app.storage import Store, StoreUnavailable
from trainer_core.publish.manifest import BrokenFolder
from worker.durably import DatabaseAway, durably
from worker.transfer import upload_folder

_PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written:
    """A checkpoint that the trainer has written."""

    step: int
    folder: Path


class CheckpointUploader:
    """One thread, one checkpoint after the other; a newer one overtakes those that still wait.

    Trouble with the store never disturbs the training: the checkpoint stays here, a warning says
    so, and the next one is tried.
    """

    def __init__(self, store: Store, attempt_id: str, token: str, prefix: str) -> None:
        self._store = store
        self._attempt_id = attempt_id
        self._token = token
        self._prefix = prefix
        self._waiting: queue.SimpleQueue[Written] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._over = False
        self._lock = threading.Lock()  # idle, over and what waits change together
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def add(self, work: Path, event: dict[str, Any]) -> None:
        """Take a `checkpoint` event's folder below `work`."""
        with self._lock:
            if not self._over:
                self._idle.clear()
                self._waiting.put(Written(int(event["step"]), work / str(event["path"])))

    def drain(self, timeout: float) -> bool:
        """Wait until everything is uploaded; False when that took too long."""
        return self._idle.wait(max(0.0, timeout))

    def stop(self) -> None:
        """Begin nothing more."""
        self._stop.set()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._next()
        finally:  # nobody must wait for a thread that has ended
            with self._lock:
                self._over = True
                self._idle.set()

    def _next(self) -> None:
        try:
            written = self._waiting.get(timeout=0.2)
        except queue.Empty:
            with self._lock:
                if self._waiting.empty():
                    self._idle.set()
            return
        if self._waiting.empty():
            self._keep(written)

    def _keep(self, written: Written) -> None:
        try:
            self._upload(written)
        except (BrokenFolder, OSError) as error:
            # Pruned by the trainer meanwhile, because newer ones exist.
            _log.warning("checkpoint of step %d is skipped: %s", written.step, error)
        except StoreUnavailable as error:
            self._warn(f"the checkpoint of step {written.step} stays on the worker: {error}")
        except (LeaseLost, DatabaseAway) as error:
            _log.warning("checkpoint of step %d: %s", written.step, error)
            self._stop.set()

    def _upload(self, written: Written) -> None:
        prefix = f"{self._prefix}checkpoints/step-{written.step:08d}/"
        for pause in (*_PAUSES, None):
            try:
                stored = upload_folder(self._store, written.folder, prefix)
                break
            except StoreUnavailable:
                overtaken = not self._waiting.empty()
                if pause is None or overtaken or self._stop.wait(pause):
                    raise
        manifest = stored.manifest
        made = StoredCheckpoint(written.step, prefix, stored.manifest_sha256, manifest.total_bytes)
        retired = durably(
            lambda session: service.commit_checkpoint(session, self._attempt_id, self._token, made),
            give_up=self._stop.is_set,
        )
        for old in retired:
            self._delete(old)

    def _delete(self, prefix: str) -> None:
        try:
            self._store.delete_prefix(prefix)
        except StoreUnavailable as error:
            _log.warning("%s was retired but is still in the store: %s", prefix, error)

    def _warn(self, message: str) -> None:
        try:
            durably(
                lambda session: service.warn(
                    session, self._attempt_id, self._token, "checkpoint_not_stored", message
                ),
                patience=5.0,
            )
        except (LeaseLost, DatabaseAway) as error:
            _log.warning("%s (%s)", message, error)


def patiently_upload(store: Store, folder: Path, prefix: str, patience: float = 600.0) -> Any:
    """Upload a folder, again and again while the store is away; raises StoreUnavailable at last."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return upload_folder(store, folder, prefix)
        except StoreUnavailable as error:
            if time.monotonic() > deadline:
                raise
            _log.warning("the store is away, trying again: %s", error)
        time.sleep(2.0)
