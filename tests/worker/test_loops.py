"""Loops: one failing step backs off alone, an outage is remembered, a stop ends everything."""

import logging
import time

import pytest
from sqlalchemy.exc import OperationalError

from app.settings import Settings
from tests.services import wait_until
from worker.loops import Health, Loop, Step
from worker.relay import BrokerAway
from worker.wakeup import Bell


@pytest.fixture
def bell() -> Bell:
    return Bell(Settings())


def outage() -> int:
    raise OperationalError("SELECT 1", {}, Exception("connection refused"))


def test_a_failing_step_does_not_stop_the_others(bell: Bell, caplog: pytest.LogCaptureFixture):
    calls = {"broken": 0, "sound": 0}

    def broken() -> int:
        calls["broken"] += 1
        raise ZeroDivisionError("one divided by nothing")

    def sound() -> int:
        calls["sound"] += 1
        return 0

    loop = Loop("test", [Step("broken", broken), Step("sound", sound)], bell, poll=0.01)
    with caplog.at_level(logging.ERROR):
        thread = loop.start()
        wait_until(lambda: calls["sound"] > 30)
        bell.stop()
        thread.join(10)
    # Back-offs of 0.5 s, 1 s, …: the broken step was tried once or twice meanwhile.
    assert calls["broken"] <= 3
    assert "one divided by nothing" in caplog.text


def test_work_that_is_left_is_done_at_once(bell: Bell):
    left = [5]

    def work() -> int:
        left[0] -= left[0] > 0
        return left[0]

    thread = Loop("test", [Step("work", work)], bell, poll=600).start()
    wait_until(lambda: left == [0], timeout=5)
    bell.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_health_knows_since_when_the_database_answers(bell: Bell):
    now = [0.0]
    health = Health(clock=lambda: now[0])
    assert health.steady_for(60)
    loop = Loop("test", [], bell, poll=1, health=health)
    assert loop._once(Step("away", outage)) == 0
    assert not health.steady_for(0)
    now[0] = 10
    assert loop._once(Step("back", lambda: 3)) == 3
    assert health.steady_for(0)
    assert not health.steady_for(60)
    now[0] = 70
    assert health.steady_for(60)


def test_a_database_that_hung_was_away_though_it_refused_nobody(bell: Bell):
    now = [0.0]
    health = Health(clock=lambda: now[0], slow=0.05)
    loop = Loop("test", [], bell, poll=1, health=health)
    assert loop._once(Step("quick", lambda: 1)) == 1
    assert health.steady_for(60)
    hung = Step("hung", lambda: [time.sleep(0.06), 1][1])
    assert loop._once(hung) == 1
    assert not health.steady_for(1)
    now[0] = 60
    assert health.steady_for(60)


def test_a_broker_that_is_away_says_nothing_about_the_database(bell: Bell):
    def away() -> int:
        raise BrokerAway("connection refused")

    loop = Loop("test", [], bell, poll=1)
    loop._once(Step("relay", away))
    assert loop.health.steady_for(60)


def test_back_offs_grow_up_to_half_a_minute_and_end_with_success(bell: Bell):
    loop = Loop("test", [], bell, poll=1)
    step = Step("away", outage)
    for _ in range(12):
        step.not_before = 0
        loop._once(step)
    assert step.failures == 12
    assert 29 < step.not_before - time.monotonic() <= 30
    assert loop._once(step) == 0
    step.work, step.not_before = (lambda: 1), 0
    assert loop._once(step) == 1
    assert step.failures == 0
