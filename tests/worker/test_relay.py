"""The outbox relay: in order, at least once, no hint twice at a time, patient with the broker."""

import threading
from typing import Any

import pytest
import redis

from app.db import transaction
from app.outbox import hint
from tests.services import wait_until
from tests.worker.world import PROJECT, one
from worker.loops import Loop, Step
from worker.relay import BrokerAway, relay
from worker.wakeup import Bell

pytestmark = pytest.mark.usefixtures("settings")


def add_hints(count: int) -> None:
    with transaction() as session:
        for number in range(count):
            hint(session, PROJECT, "control", "run", f"att_{number}")


class Broker:
    """Takes what it is sent, until it goes away."""

    def __init__(self, lives: int = 10**9) -> None:
        self.lives = lives
        self.sent: list[str] = []
        self.meet: threading.Barrier | None = None

    def __call__(self, queue: str, handler: str, ids: list[Any]) -> None:
        assert (queue, handler) == ("control", "run")
        if self.lives <= len(self.sent):
            raise BrokerAway("connection refused")
        self.sent.append(ids[0])
        if self.meet and len(self.sent) == 1:
            self.meet.wait(10)
            self.meet.wait(10)


def relay_once(broker: Broker) -> int:
    with transaction() as session:
        return relay(session, broker)


def test_hints_leave_in_order_and_are_gone():
    add_hints(250)
    broker = Broker()
    assert [relay_once(broker) for _ in range(4)] == [100, 100, 50, 0]
    assert broker.sent == [f"att_{number}" for number in range(250)]
    assert one("SELECT count(*) FROM outbox") == 0


def test_what_was_not_sent_stays():
    add_hints(5)
    broker = Broker(lives=2)
    assert relay_once(broker) == 2
    with pytest.raises(BrokerAway):
        relay_once(broker)
    assert one("SELECT count(*) FROM outbox") == 3
    broker.lives = 10
    assert relay_once(broker) == 3
    assert broker.sent == [f"att_{number}" for number in range(5)]


def test_a_second_relay_skips_what_the_first_is_sending():
    add_hints(100)
    slow, quick = Broker(), Broker()
    slow.meet = threading.Barrier(2)
    first = threading.Thread(target=relay_once, args=[slow])
    first.start()
    slow.meet.wait(10)
    add_hints(3)
    assert relay_once(quick) == 3
    slow.meet.wait(10)
    first.join(10)
    assert len(slow.sent) == 100


def test_a_commit_wakes_the_relay(settings):
    bell = Bell(settings)
    broker = Broker()
    listener = threading.Thread(target=bell.listen)
    listener.start()
    # The poll would come after a minute only.
    loop = Loop("relay", [Step("relay", lambda: relay_once(broker))], bell, poll=60)
    thread = loop.start()
    try:
        add_hints(1)
        wait_until(lambda: broker.sent == ["att_0"], timeout=10)
        add_hints(1)
        wait_until(lambda: len(broker.sent) == 2, timeout=10)
    finally:
        bell.stop()
        thread.join(10)
        listener.join(10)
    assert not thread.is_alive()
    assert not listener.is_alive()


def test_a_real_message_carries_ids_and_nothing_else(settings, valkey_url: str):
    celery_app = pytest.importorskip("worker.celery_app")
    add_hints(1)
    assert relay_once(celery_app.sender(settings)) == 1
    with redis.Redis.from_url(valkey_url) as client:
        [message] = client.lrange("control", 0, -1)
    assert b'"content-type": "application/json"' in message
    assert b'"task": "run"' in message


def test_a_broker_that_is_away_is_reported_at_once(settings):
    celery_app = pytest.importorskip("worker.celery_app")
    away = settings.model_copy(
        update={"broker_url": type(settings.broker_url)("redis://127.0.0.1:1/0")}
    )
    add_hints(1)
    with pytest.raises(BrokerAway), transaction() as session:
        relay(session, celery_app.sender(away))
    assert one("SELECT count(*) FROM outbox") == 1
