"""How much of a long replay is read at once, and how long it rests between two pages."""

import asyncio
from types import SimpleNamespace

import pytest

from app import activity
from app.events import pace
from app.events.pace import Pace


@pytest.fixture(autouse=True)
def _nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_last_answer", float("-inf"))


def test_a_replay_reads_small_pages_while_others_ask() -> None:
    assert Pace().page() == pace.QUIET
    activity.answered()
    assert Pace().page() == pace.SHARED


def _rests_after(events: int, monkeypatch: pytest.MonkeyPatch, writing: float = 0.0) -> list[float]:
    """Return the rests (s) between two pages after that many events; reading one takes 10 ms."""
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", rest)
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))
    paced = Pace()
    while (events := events - paced.page()) > 0:
        pass
    now[0] += 0.01
    paced.has_read()
    now[0] += writing
    asyncio.run(paced.rest())
    return rests


def test_only_a_long_replay_rests_and_only_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as long as the page took: others have three quarters of the time."""
    assert _rests_after(2 * pace.AT_FULL_SPEED, monkeypatch) == []
    activity.answered()
    assert _rests_after(pace.AT_FULL_SPEED, monkeypatch) == []
    (rest,) = _rests_after(2 * pace.AT_FULL_SPEED, monkeypatch)
    assert rest == pytest.approx(3 * 0.01)


@pytest.mark.parametrize("writing", [0.0125, 1.0])
def test_time_that_the_client_took_is_rest_already(
    writing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    activity.answered()
    (rest,) = _rests_after(2 * pace.AT_FULL_SPEED, monkeypatch, writing)
    assert rest == pytest.approx(max(0.0, 3 * 0.01 - writing))
