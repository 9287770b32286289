"""The outbox relay: in order, at least once, no hint twice at a time, patient with the broker."""

import base64
import json
import threading
import time
from typing import Any

import pytest
import redis
from sqlalchemy import make_url

from app.db import get_engine, transaction
from app.outbox import hint
from app.settings import Settings
from polar.stack.services import Valkey
from tests.drills.proxy import Proxy
from tests.services import wait_until
from tests.worker.world import PROJECT, one, run_sql
from worker.celery_app import sender
from worker.loops import Loop, Step
from worker.relay import BrokerAway, Send, relay
from worker.wakeup import Bell

pytestmark = pytest.mark.usefixtures("settings")

_OPEN_WRITERS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
"""


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


def relay_once(broker: Send) -> int:
    return relay(broker)


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
    add_hints(1)
    assert relay_once(sender(settings)) == 1
    with redis.Redis.from_url(valkey_url) as client:
        [message] = client.lrange("control", 0, -1)
    assert b'"content-type": "application/json"' in message
    assert b'"task": "run"' in message


def test_a_broker_that_is_away_is_reported_at_once(settings):
    away = settings.model_copy(
        update={"broker_url": type(settings.broker_url)("redis://127.0.0.1:1/0")}
    )
    add_hints(1)
    with pytest.raises(BrokerAway):
        relay(sender(away))
    assert one("SELECT count(*) FROM outbox WHERE taken_until IS NULL") == 1


def test_b12_a_slow_broker_holds_no_transaction_and_gets_each_hint_once(
    settings: Settings, valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    """The database ends a transaction that stands still for half a lease, here a second."""
    monkeypatch.setattr(settings, "lease", 2.0)
    get_engine.cache_clear()
    add_hints(20)
    told: list[int] = []
    with Proxy(lambda: ("127.0.0.1", valkey.port), latency=0.06) as proxy, proxy.toxic("slow"):
        url = make_url(valkey_url).set(host="127.0.0.1", port=proxy.port)
        secret = type(settings.broker_url)(url.render_as_string(hide_password=False))
        send = sender(settings.model_copy(update={"broker_url": secret}))

        def send_and_look(queue: str, handler: str, ids: list[Any]) -> None:
            send(queue, handler, ids)
            told.append(one(_OPEN_WRITERS))

        began = time.monotonic()
        while one("SELECT count(*) FROM outbox"):
            relay(send_and_look)
        took = time.monotonic() - began
    assert took > settings.lease / 2  # else nothing was tried here
    assert set(told) == {0}  # streams of all jobs wait for whoever writes
    with redis.Redis.from_url(valkey_url) as client:
        messages = [json.loads(each) for each in client.lrange("control", 0, -1)]
    sent = [json.loads(base64.b64decode(each["body"]))[0][0] for each in messages]
    assert sent[::-1] == [f"att_{number}" for number in range(20)]


def test_a_relay_gives_a_batch_up_after_its_time_and_leaves_the_rest_in_order():
    add_hints(5)
    broker = Broker()
    assert relay(broker, send_for=0.0) == 1
    assert relay_once(broker) == 4
    assert broker.sent == [f"att_{number}" for number in range(5)]


def test_b12_what_a_relay_had_taken_when_it_died_is_sent_by_the_next():
    add_hints(2)
    run_sql("UPDATE outbox SET taken_until = now() + interval '1 hour'")
    broker = Broker()
    assert relay_once(broker) == 0
    run_sql("UPDATE outbox SET taken_until = now() - interval '1 s'")
    assert relay_once(broker) == 2
