"""A broker that delivers again: what it takes for lost is a hint, and Postgres decides."""

import threading
import time
from collections.abc import Iterator

import pytest
from celery.contrib.testing.worker import start_worker

from app.attempts import service
from app.db import transaction
from app.settings import Settings
from tests.services import wait_until
from tests.worker.test_attempts import HOST, reserved, status
from tests.worker.world import one, rows
from worker.celery_app import make_app

VISIBLE_AGAIN = 2.0
LASTS = 10.0


@pytest.fixture
def claims(settings: Settings) -> Iterator[tuple[list[object], list[str]]]:
    """A worker whose handler takes far longer than the broker's patience; its claims."""
    app = make_app(settings)
    app.conf.broker_transport_options["visibility_timeout"] = VISIBLE_AGAIN
    taken: list[object] = []
    delivered: list[str] = []
    stop = threading.Event()

    def run(attempt_id: str) -> None:
        delivered.append(attempt_id)
        with transaction() as session:
            taken.append(service.claim(session, attempt_id, HOST, f"nonce-{len(delivered)}"))
        stop.wait(LASTS)

    app.task(run, name="run", ignore_result=True, max_retries=0)
    app.conf.task_default_queue = "host.host-a"
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False):
        app.send_task("run", args=[_attempt()], queue="host.host-a")
        yield taken, delivered
        stop.set()


def _attempt() -> str:
    _, attempt_id = reserved()
    return attempt_id


def test_b10_work_that_outlasts_the_brokers_patience_runs_once(
    claims: tuple[list[object], list[str]],
) -> None:
    taken, delivered = claims
    wait_until(lambda: taken, timeout=30)
    began = time.monotonic()
    # Long enough for the broker to deliver again, several times over.
    wait_until(lambda: time.monotonic() - began > 3 * VISIBLE_AGAIN, timeout=60)
    assert [claim for claim in taken if claim is not None] == taken[:1]
    assert len(set(delivered)) == 1
    assert rows("SELECT number FROM attempts") == [(1,)]
    job_id = one("SELECT id FROM jobs")
    assert status(job_id) == "provisioning"
