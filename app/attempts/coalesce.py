"""Joins metrics that come faster than anyone reads them, without losing a value.

Above about 200 points a second, what lies within a tenth of a second becomes one event: its `data`
are the newest values, and `points` holds every point with its step and time.
"""

from datetime import timedelta
from typing import Any

WINDOW = timedelta(seconds=0.1)
MOST = 20  # points in a window that are still stored one by one
LONGEST = 200
Facts = list[dict[str, Any]]


def coalesce(facts: Facts) -> Facts:
    """Return the facts in order, floods of consecutive `metrics` joined."""
    joined: Facts = []
    run: Facts = []
    for fact in facts:
        if fact["type"] == "metrics" and _belongs(fact, run):
            run.append(fact)
            continue
        joined += _flushed(run)
        run = [fact]
    return joined + _flushed(run)


def _belongs(fact: dict[str, Any], run: Facts) -> bool:
    if not run or run[0]["type"] != "metrics" or len(run) == LONGEST:
        return False
    apart: timedelta = fact["time"] - run[0]["time"]
    return abs(apart) < WINDOW


def _flushed(run: Facts) -> Facts:
    if len(run) <= MOST:
        return run
    newest: dict[str, Any] = {}
    for fact in run:
        newest |= fact["data"]
    points = [{**fact["data"], "time": fact["time"]} for fact in run]
    return [{**run[-1], "data": {**newest, "points": points}}]
