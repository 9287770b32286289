"""The trainer's own rules, applied to a JobSpec and the hosts that are online."""

from typing import Any

from app.jobs.hardware import Host
from app.jobs.schemas import Warn
from app.jobs.spec import JobSpec


def resolve_spec(spec: JobSpec, hosts: list[Host]) -> tuple[dict[str, Any], list[Warn]]:
    """Return the TrainSpec with every default filled in, and what the caller should know.

    Raises InvalidPayload for combinations that cannot work.
    """
    del hosts
    return spec.train_spec().model_dump(mode="json"), []
