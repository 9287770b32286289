"""Process that holds one lease: `python -m worker.supervisor attempt|prepare|plan ID`.

It runs detached: in a session of its own, with nothing but its log to write to. It ends with the
stack that it belongs to (`POLAR_STACK_PID`), and its trainer ends with it.
"""

import logging
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from app.attempts import service as attempts
from app.journal import write_json_lines
from app.plans import leases as plans
from app.preparations import service as preparations
from app.queue import flush
from app.settings import Settings, get_settings
from app.storage import get_store
from worker.durably import durably
from worker.environment import STACK_MARK
from worker.lease import LeaseKeeper
from worker.proctree import Identity
from worker.registration import host_id
from worker.supervisor_attempt import AttemptSupervisor
from worker.supervisor_plan import PlanSupervisor
from worker.supervisor_prepare import PreparationSupervisor

NAME = "polar-lease"  # by which the embedded stack finds us when it is stopped
_log = logging.getLogger(__name__)
_CLAIM_PATIENCE = 60.0


def main(arguments: Sequence[str]) -> int:
    """`attempt`, `prepare` or `plan`, and an ID: claim it, unless someone else has it, and see it
    through."""
    write_json_lines()
    Path("/proc/self/comm").write_text(NAME, encoding="utf-8")
    kind, identifier = arguments
    _log.info("supervisor of %s", identifier)
    settings = get_settings()
    try:
        _WORK[kind](settings, identifier)
    finally:
        flush()
    return 0


def supervise_attempt(settings: Settings, attempt_id: str) -> None:
    """Run an attempt, unless it is claimed already."""
    nonce = secrets.token_hex(16)
    worker = host_id(settings)
    claim = durably(
        lambda session: attempts.claim(session, attempt_id, worker, nonce),
        patience=_CLAIM_PATIENCE,
    )
    if claim is None:
        _log.info("%s: nothing to do", attempt_id)
        return
    _log.info("claimed %s of %s", attempt_id, claim.job_id)
    keeper = LeaseKeeper(
        settings,
        renew=lambda session: attempts.renew(session, attempt_id, claim.token),
        look=lambda session: attempts.intent(session, attempt_id, claim.token),
        stack=_stack(),
        last_resort=_end_at_once,
    )
    with _obeying_signals(keeper):
        AttemptSupervisor(settings, get_store(), claim, keeper).run()


def supervise_preparation(settings: Settings, job_id: str) -> None:
    """Prepare a job's data, unless someone does already."""
    worker = host_id(settings)
    token = durably(
        lambda session: preparations.claim_preparation(session, job_id, worker),
        patience=_CLAIM_PATIENCE,
    )
    if token is None:
        _log.info("%s: nothing to prepare", job_id)
        return
    _log.info("claimed the preparation of %s", job_id)
    keeper = LeaseKeeper(
        settings,
        renew=lambda session: preparations.renew_preparation(session, job_id, token),
        look=lambda session: preparations.preparation_intent(session, job_id, token),
        stack=_stack(),
        last_resort=_end_at_once,
    )
    with _obeying_signals(keeper):
        PreparationSupervisor(settings, get_store(), (job_id, token), keeper).run()


def supervise_plan(settings: Settings, plan_id: str) -> None:
    """Make a plan, unless someone does already."""
    worker = host_id(settings)
    token = durably(
        lambda session: plans.claim_plan(session, plan_id, worker), patience=_CLAIM_PATIENCE
    )
    if token is None:
        _log.info("%s: nothing to plan", plan_id)
        return
    _log.info("claimed %s", plan_id)
    keeper = LeaseKeeper(
        settings,
        renew=lambda session: plans.renew_plan(session, plan_id, token),
        look=lambda session: plans.plan_intent(session, plan_id, token),
        stack=_stack(),
        last_resort=_end_at_once,
    )
    with _obeying_signals(keeper):
        PlanSupervisor(settings, get_store(), (plan_id, token), keeper).run()


_WORK = {"attempt": supervise_attempt, "prepare": supervise_preparation, "plan": supervise_plan}


class _obeying_signals:  # noqa: N801 - reads as a phrase where it is used
    """Runs the keeper; SIGTERM and SIGINT make the trainer stop whole and us end after it."""

    def __init__(self, keeper: LeaseKeeper) -> None:
        self._keeper = keeper

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        self._keeper.start()

    def __exit__(self, *_: object) -> None:
        self._keeper.stop()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        _log.info("signal %d: the trainer is asked to stop", number)
        self._keeper.abandon()


def _end_at_once() -> None:
    """The lease is someone else's and we hang: our trainer dies with us."""
    _log.error("the lease is lost and this supervisor hangs: it ends")
    os._exit(70)


def _stack() -> Identity | None:
    return Identity.parse(os.environ.get(STACK_MARK, ""))


if __name__ == "__main__":
    code = 70
    try:
        code = main(sys.argv[1:])
    finally:
        if code:
            _log.exception("this supervisor fails; its lease runs out")
        logging.shutdown()
        os._exit(code)  # threads that were left behind do not hold us up
