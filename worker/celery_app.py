"""Celery as we use it: hints that carry ids, nothing else.

A message is acknowledged when it arrives, has no result, and may come twice or never: the claim in
Postgres decides. Handlers are short (they claim, start a supervisor and return), so they run in
threads of this process and nothing long ever hangs on the broker.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal, get_args

from celery import Celery
from celery.platforms import SecurityWarning
from celery.signals import setup_logging, worker_ready
from kombu.exceptions import OperationalError

from app.outbox import CONTROL_QUEUE, PREPARE_QUEUE, host_queue
from app.schema import refuse_wrong_schema
from app.settings import Settings, get_settings
from worker.hand_back import hand_back
from worker.handlers import HANDLERS
from worker.registration import Registration, host_id
from worker.relay import BrokerAway, Send
from worker.sweep import Sweeper, keep_sweeping
from worker.tidy import keep_tidy

Role = Literal["host", "control", "prepare"]
CONCURRENCY = 4
_HOLDS = {"host": ("att_",), "prepare": ("job_", "plan_")}  # whose supervisors a role starts


def make_app(settings: Settings) -> Celery:
    """Return the Celery app with every setting that matters; connects at the first use."""
    app = Celery("polar", broker=settings.broker_url.get_secret_value(), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        # Handlers are short and a supervisor does not depend on them: nothing is cancelled.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=5,
        broker_transport_options={
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "max_retries": 1,
        },
        task_default_queue=CONTROL_QUEUE,
        timezone="UTC",
    )
    return app


def sender(settings: Settings) -> Send:
    """Return the relay's `send(queue, handler, ids)`; it raises BrokerAway without retrying."""
    app = make_app(settings)

    def send(queue: str, handler: str, ids: list[Any]) -> None:
        try:
            app.send_task(handler, args=ids, queue=queue, retry=False, ignore_result=True)
        except OperationalError as error:
            raise BrokerAway(str(error)) from error

    return send


def queue_of(role: Role, worker_id: str) -> str:
    """Return the one queue that a worker of this role reads."""
    return {"control": CONTROL_QUEUE, "prepare": PREPARE_QUEUE, "host": host_queue(worker_id)}[role]


def with_handlers(app: Celery) -> Celery:
    """Register every handler of the visible table under its own name."""
    for name, handler in HANDLERS.items():
        app.task(handler, name=name, ignore_result=True, max_retries=0)
    return app


def run_worker(role: Role) -> int:
    """Read this role's queue until SIGTERM, then hand back what runs; registers meanwhile."""
    settings = get_settings()
    refuse_wrong_schema()
    setup_logging.connect(keep_our_logging)
    # Its danger is pickled messages, which we refuse; containers and small machines run as root.
    warnings.simplefilter("ignore", SecurityWarning)
    app = with_handlers(make_app(settings))
    if role != "control":  # control touches no files of attempts
        keep_tidy(settings)
    registration = _registration(settings, role)
    # Only a worker that reads its queue, and that a SIGTERM ends in order, says that it lives.
    worker_ready.connect(lambda **_: registration.start(), weak=False)
    queue = queue_of(role, registration.who.id)
    worker = app.Worker(
        hostname=f"{role}@{registration.who.id}",
        pool_cls="threads",
        concurrency=CONCURRENCY,
        queues=[queue],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
    )
    try:
        worker.start()
    finally:
        registration.stop()  # first: nothing new comes to a host that is not seen
    code = int(worker.exitcode or 0)
    # One that the broker has failed starts again: its runs do not hang on it.
    if code == 0 and (prefixes := _HOLDS.get(role)):
        hand_back(settings, *prefixes)
    return code


def _registration(settings: Settings, role: Role) -> Registration:
    if role != "host":
        return Registration(settings, role)
    sweeper = Sweeper(settings, host_id(settings))
    keep_sweeping(sweeper, settings.poll)
    return Registration(settings, role, before_offering=sweeper.before_offering)


def main(arguments: Sequence[str]) -> int:
    """Run the worker of the role that the arguments name."""
    roles: dict[str, Role] = {role: role for role in get_args(Role)}
    if len(arguments) != 1 or arguments[0] not in roles:
        sys.stderr.write(f"usage: python -m worker celery {'|'.join(roles)}\n")
        return 2
    return run_worker(roles[arguments[0]])


def keep_our_logging(**_: Any) -> None:
    """Tell Celery that logging is set up already (by having a receiver of this signal)."""
