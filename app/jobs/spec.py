"""What `POST /jobs` takes: `trainer_core.spec.job`, which clients compose and check by as well."""

from trainer_core.spec.job import (
    Compute,
    Duration,
    Gpus,
    JobName,
    JobSpec,
    Labels,
    PlanId,
    Retry,
)

__all__ = [
    "Compute",
    "Duration",
    "Gpus",
    "JobName",
    "JobSpec",
    "Labels",
    "PlanId",
    "Retry",
    "seconds",
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(duration: str) -> int:
    """Return a duration such as `90s`, `30m`, `8h` or `2d` in seconds."""
    return int(duration[:-1]) * _SECONDS[duration[-1]]
