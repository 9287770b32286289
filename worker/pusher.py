"""Takes pushes to a hub that are due, one at a time, and sees each through in its own process.

The process dies with this one, and a push that nobody sees through is taken by another once its
lease has run out. Doing one twice makes no second commit (`trainer_core.publish.hub`).
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pydantic import ValidationError
from sqlalchemy.exc import InterfaceError, OperationalError

from app.db import transaction
from app.errors import NotFound, Unavailable
from app.hub import service, store
from app.hub.store import Due, Outcome
from app.secrets.service import reveal
from app.settings import Settings
from trainer_core.spec import HubPush as Wish
from worker import lifeline
from worker.push import PushResult

TICK = 0.05
_log = logging.getLogger(__name__)
# Weights leave the store as files that can be sought, which its own protocol for chunks does not
# take; and no token of this process's own may stand in for a project's.
_LIBRARY = {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}
_UNFIT = "this version does not take the job's publish.hub: clone the job with a valid one"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class _Away(Exception):
    """The push was left to another: its lease is lost, or this process stops."""


class Pusher:
    """Makes pushes until `stopping` is set, which breaks off the one that is going on."""

    def __init__(self, settings: Settings, stopping: threading.Event) -> None:
        self._settings = settings
        self._stopping = stopping

    def push_next(self) -> int:
        """Take the push that is due and see it through; 0 when none is."""
        with transaction() as session:
            due = store.claim(session)
        if due is None:
            return 0
        _log.info("pushing the %s of %s", due.folder.kind, due.job_id)
        try:
            result = self._result(due)
        except _Away:
            with transaction() as session:
                store.give_back(session, due)
            return 1
        outcome = _outcome(due, result)
        _log.info("push of %s: %s %s", due.job_id, outcome.state, outcome.message or "")
        with transaction() as session:
            service.settle(session, due, outcome)
        return 1

    def _result(self, due: Due) -> PushResult:
        if due.wish is None:
            return PushResult(message=_UNFIT, final=True)
        name = due.wish.token.secret
        try:
            with transaction() as session:
                token = reveal(session, due.project_id, [name])[name]
        except NotFound:
            message = f"there is no secret {name} any more: PUT /secrets/{name} makes it"
            return PushResult(message=message, final=True)
        except Unavailable as error:
            return PushResult(message=error.message)
        try:
            return self._run(due, _order(due, due.wish, token, self._settings.hub_endpoint))
        except OSError as error:
            return PushResult(message=f"the push could not be started here: {error}")

    def _run(self, due: Due, order: bytes) -> PushResult:
        with _process() as process:
            if process.stdin is None or process.stdout is None:
                raise AssertionError("a push has pipes")
            with suppress(BrokenPipeError), process.stdin as pipe:  # its end is told below
                pipe.write(order)
            self._see_through(due, process)
            said = process.stdout.read()
        try:
            return PushResult.model_validate_json(said)
        except ValidationError:
            return PushResult(message=f"the push ended by exit code {process.returncode}")

    def _see_through(self, due: Due, process: "subprocess.Popen[bytes]") -> None:
        renewed = time.monotonic()
        while process.poll() is None:
            if self._stopping.wait(TICK):
                raise _Away
            if time.monotonic() - renewed < self._settings.lease_renew:
                continue
            renewed = time.monotonic()
            if not _renew(due):
                raise _Away


def _renew(due: Due) -> bool:
    """Prolong the lease; a database that is away does not take it from us."""
    try:
        with transaction() as session:
            return store.renew(session, due)
    except (OperationalError, InterfaceError) as error:
        _log.warning("lease of the push of %s: %s", due.job_id, type(error).__name__)
        return True


def _order(due: Due, wish: Wish, token: str, endpoint: str) -> bytes:
    folder = due.folder
    what = "model" if folder.kind == "model" else f"checkpoint at step {folder.step}"
    return json.dumps(
        {
            "endpoint": endpoint,
            "repo_id": wish.repo_id,
            "revision": wish.revision,
            "private": wish.private,
            "token": token,
            "kind": folder.kind,
            "whole": wish.strategy == "checkpoint",
            "prefix": folder.prefix,
            "manifest_sha256": folder.manifest_sha256,
            "message": f"{due.job_name}: {what} ({due.job_id})",
        }
    ).encode()


@contextmanager
def _process() -> "Iterator[subprocess.Popen[bytes]]":
    """A process that pushes; it is gone at the end, and when this one is."""
    environment = {k: v for k, v in os.environ.items() if k not in _TOKENS} | _LIBRARY
    reading, writing = lifeline.make()
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "worker", "push"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a library's own words could hold anything
            pass_fds=(reading,),
            start_new_session=True,
        ) as process:
            try:
                lifeline.bind(reading, process.pid)
                yield process
            finally:
                process.kill()
    finally:
        os.close(reading)
        os.close(writing)


def _outcome(due: Due, result: PushResult) -> Outcome:
    if result.commit is not None:
        return Outcome("pushed", commit=result.commit)
    if result.final:
        return Outcome("failed", result.message)
    wait = service.backoff(due.failures, result.retry_after)
    return Outcome("pending", result.message, wait=wait)
