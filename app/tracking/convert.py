"""Our specs and events as MLflow's parameters, metrics and statuses, within its limits."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from app.jobs.lifecycle import Status
from app.tracking.client import RunStatus

# Limits of MLflow 3.17: a longer value is refused, and the refusal would lose the whole batch.
MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000

CLOSED: dict[Status, RunStatus] = {
    Status.SUCCEEDED: "FINISHED",
    Status.FAILED: "FAILED",
    Status.CANCELLED: "KILLED",
}
_NOT_A_NAME = re.compile(r"[^\w.\- :/]")


def name_of(key: str) -> str:
    """Return `key` as a name that MLflow takes."""
    cleaned = _NOT_A_NAME.sub("_", key)[:MAX_KEY]
    return "/".join(part for part in cleaned.split("/") if part not in ("", ".", "..")) or "_"


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by dotted path, as text; lists stay whole, None is left out."""
    flat: dict[str, str] = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{path}.")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            flat |= flatten({str(i): item for i, item in enumerate(value)}, f"{path}.")
        elif value is not None:
            flat[name_of(path)] = str(value)
    return flat


def shorten(values: Mapping[str, str], limit: int) -> tuple[dict[str, str], list[str]]:
    """Cut values to `limit` characters; returns them and the names of those that were cut."""
    cut = [key for key, value in values.items() if len(value) > limit]
    return {
        key: value if len(value) <= limit else value[: limit - 1] + "…"
        for key, value in values.items()
    }, cut


def milliseconds(time: datetime) -> int:
    """Return a point in time as MLflow counts it."""
    return int(time.timestamp() * 1000)


def metric_points(events: Iterable[tuple[datetime, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return every number of `metrics` events as a point with its step and time."""
    points = []
    for time, data in _one_by_one(events):
        step = data.get("step")
        for key, value in data.items():
            if key == "step" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            points.append(
                {
                    "key": name_of(key),
                    "value": value,
                    "timestamp": milliseconds(time),
                    "step": step if isinstance(step, int) else 0,
                }
            )
    return points


def _one_by_one(
    events: Iterable[tuple[datetime, Mapping[str, Any]]],
) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    """Take apart the events that stand for a flood of points."""
    for time, data in events:
        for point in data.get("points", (data,)):
            yield datetime.fromisoformat(point["time"]) if "time" in point else time, point
