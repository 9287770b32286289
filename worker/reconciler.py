"""Keeps what Postgres says and what the world does together: hints, placement, takeovers, mirrors.

Several reconcilers may run at once. It needs no broker to live: only hints wait for that.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from app.attempts.orphans import adopt_orphans
from app.db import transaction
from app.hub.store import drop_unwanted
from app.registry.mirror import write_next_pointer
from app.schema import refuse_wrong_schema
from app.settings import Settings, get_settings
from app.storage import get_store
from app.sweeps.finishing import finish_next
from app.tracking.client import Mlflow
from app.tracking.mirror import mirror_one
from app.webhooks.store import give_up
from worker import takeover
from worker.celery_app import sender
from worker.courier import Courier
from worker.loops import Health, Loop, Step
from worker.placement import place
from worker.pusher import Pusher
from worker.registration import Registration
from worker.relay import Send, relay
from worker.stepper import Stepper
from worker.targets.fake import FakeTarget
from worker.wakeup import Bell

PUSHES_AT_ONCE = 2


def in_transaction(work: Callable[[Session], int]) -> Callable[[], int]:
    """Return `work` as a step in a transaction of its own."""

    def step() -> int:
        with transaction() as session:
            return work(session)

    return step


def now_and_then(work: Callable[[], int], every: float = 10.0) -> Callable[[], int]:
    """Return `work` as a step that is done at most every so many seconds."""
    last = float("-inf")

    def step() -> int:
        nonlocal last
        if time.monotonic() - last < every:
            return 0
        last = time.monotonic()
        return work()

    return step


def loops(settings: Settings, bell: Bell, stepper_id: str, send: Send) -> list[Loop]:
    """Return the reconciler's loops: hints, jobs, slow neighbours, sweeps, pushes, webhooks."""
    health = Health(slow=settings.lease_renew)
    jobs = [
        Step("place", in_transaction(lambda session: place(session, stepper_id))),
        Step("requests", in_transaction(takeover.meet_requests)),
        Step("hint again", in_transaction(takeover.hint_again)),
        Step("take over", lambda: takeover.take_over(health, settings.lease)),
        Step("overdue", now_and_then(takeover.Overdue(health, settings.lease).look)),
        Step("orphans", now_and_then(in_transaction(adopt_orphans))),
    ]
    if settings.fake_target:
        stepper = Stepper(FakeTarget(), get_store(), settings, stepper_id)
        jobs.append(Step("fake target", stepper.step))
    return [
        Loop("relay", [Step("relay", lambda: relay(send))], bell, settings.poll),
        Loop("jobs", jobs, bell, settings.poll, health),
        Loop("mirrors", _mirrors(settings), bell, settings.poll),
        Loop("sweeps", [Step("sweeps", finish_next)], bell, settings.poll),
        *(Loop("hub", _pushes(settings, bell), bell, settings.poll) for _ in range(PUSHES_AT_ONCE)),
        *(
            Loop("webhooks", _deliveries(settings, sound=sound), bell, settings.poll)
            for sound in (True, False)
        ),
    ]


def _deliveries(settings: Settings, *, sound: bool) -> list[Step]:
    courier = Courier(settings, sound=sound)
    steps = [Step("webhooks", courier.deliver_next)]
    if sound:
        steps.append(Step("old deliveries", now_and_then(in_transaction(give_up))))
    return steps


def _pushes(settings: Settings, bell: Bell) -> list[Step]:
    pusher = Pusher(settings, bell.stopping)
    return [
        Step("hub", pusher.push_next),
        Step("dropped pushes", now_and_then(in_transaction(drop_unwanted))),
    ]


def _mirrors(settings: Settings) -> list[Step]:
    objects = get_store()
    steps = [Step("pointers", lambda: int(write_next_pointer(objects)))]
    if settings.mlflow_url:
        mlflow = Mlflow(settings.mlflow_url)
        steps.append(Step("mlflow", lambda: int(mirror_one(mlflow, objects))))
    return steps


def _told_to_stop() -> int:
    """Return a descriptor that can be read from once SIGTERM or SIGINT has come.

    The handlers do nothing: one that did could meet its own thread inside a lock. And there must
    be handlers: a library's thread that does not block the signal would end the process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reading


def main(arguments: Sequence[str] = ()) -> int:
    """Run until SIGTERM or SIGINT; whatever is being done then is finished first."""
    del arguments
    told = _told_to_stop()
    settings = get_settings()
    refuse_wrong_schema()
    bell = Bell(settings)
    with Registration(settings, "reconciler") as registration:
        listener = threading.Thread(target=bell.listen, name="listen", daemon=True)
        listener.start()
        started = loops(settings, bell, registration.who.id, sender(settings))
        threads = [loop.start() for loop in started]
        os.read(told, 1)
        bell.stop()
        for thread in threads:
            thread.join(timeout=25)
    return 0
