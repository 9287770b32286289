"""Hosts that could take a job, and how long it would take there by what is known."""

from statistics import median
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.jobs.spec import Gpus
from app.plans.schemas import Figures, Machine
from app.targets.service import list_targets

# Of one project: others' jobs are nobody's business. Whole models and adapters differ in speed.
_SPEEDS = text(
    """
    SELECT w.hostname, (j.progress ->> 'tokens_per_second')::float AS speed
    FROM jobs j JOIN attempts a ON a.job_id = j.id JOIN workers w ON w.id = a.worker_id
    WHERE j.project_id = :project AND j.status = 'succeeded' AND a.outcome = 'succeeded'
        AND j.task_type = :task AND j.spec #>> '{model,name_or_path}' = :model
        AND j.spec #>> '{adapter,type}' IS NOT DISTINCT FROM :adapter
        AND coalesce(j.spec #>> '{compute,gpus}', '') = :gpus
        AND (j.progress ->> 'tokens_per_second')::float > 0
    ORDER BY j.finished_at DESC LIMIT 20
    """
)
_UNKNOWN = "no finished job of this task and model on this machine tells how fast it is"


def machines(
    session: Session, project_id: str, spec: dict[str, Any], figures: Figures | None
) -> list[Machine]:
    """Return the hosts that are online and could run the spec, as it was given."""
    wanted = (spec.get("compute") or {}).get("gpus")
    gpus = None if wanted is None else Gpus.model_validate(wanted)
    speeds = _speeds(session, project_id, spec)
    found = []
    for target in list_targets(session, project_id).items:
        for worker in target.workers:
            fitting = [device for device in worker.devices if _fits(device, gpus)]
            usable = worker.online and not worker.draining and worker.kind == "host"
            if target.name != "local" or not usable or len(fitting) < (gpus.count if gpus else 1):
                continue
            seconds = _seconds(figures, speeds.get(worker.hostname))
            found.append(
                Machine(
                    target=target.name,
                    machine=worker.hostname,
                    devices=[device.name for device in fitting],
                    free_devices=sum(not device.busy for device in fitting),
                    price_per_hour=0.0,
                    seconds=seconds,
                    cost_usd=0.0,
                    reason=_UNKNOWN if seconds is None else None,
                )
            )
    return found


def _fits(device: Any, gpus: Gpus | None) -> bool:
    if gpus is None:
        return True
    named = (gpus.name or "").lower() in device.name.lower()
    memory = (device.memory_gb or 0) >= (gpus.min_memory_gb or 0)
    return device.kind == "cuda" and named and memory


def _speeds(session: Session, project_id: str, spec: dict[str, Any]) -> dict[str, float]:
    """Median tokens per second by host."""
    values = {
        "project": project_id,
        "task": spec["task"]["type"],
        "model": spec["model"]["name_or_path"],
        "adapter": (spec.get("adapter") or {}).get("type"),
        "gpus": "",
    }
    if (spec.get("compute") or {}).get("gpus") is not None:
        return {}  # which of a host's GPUs a job had is not told
    by_host: dict[str, list[float]] = {}
    for row in session.execute(_SPEEDS, values):
        by_host.setdefault(row.hostname, []).append(row.speed)
    return {host: median(speeds) for host, speeds in by_host.items()}


def _seconds(figures: Figures | None, speed: float | None) -> float | None:
    if figures is None or figures.steps is None or speed is None:
        return None
    return figures.tokens.total * figures.steps.epochs / speed
