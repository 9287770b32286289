"""How a sweep looks from outside."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.comparison.fields import differing
from app.models import Job, Sweep
from app.sweeps import store
from app.sweeps.schemas import RunOut, SweepOut, SweepSummary

_SAME = (
    *("id", "name", "status", "metric", "max_concurrent", "register_best", "best", "reason"),
    *("cancel_requested_at", "created_at", "finished_at"),
)


def summary(sweep: Sweep, counts: Mapping[str, int]) -> SweepSummary:
    """Return a sweep without its runs."""
    fields = {name: getattr(sweep, name) for name in _SAME}
    return SweepSummary.model_validate({**fields, "counts": counts})


def of_sweep(session: Session, sweep: Sweep) -> SweepOut:
    """Return the sweep with its runs."""
    jobs = store.runs(session, sweep.id)
    here = f"/sweeps/{sweep.id}"
    shown = summary(sweep, store.counts(session, [sweep.id])[sweep.id])
    return SweepOut(
        **shown.model_dump(),
        spec=sweep.spec,
        runs=_runs(sweep, jobs),
        links={
            "self": here,
            "comparison": f"{here}/comparison",
            "jobs": f"/jobs?sweep={sweep.id}",
            **({"cancel": f"{here}/cancel"} if sweep.status == "running" else {}),
        },
    )


def _runs(sweep: Sweep, jobs: Sequence[Job]) -> list[RunOut]:
    specs = [{name: value for name, value in job.spec.items() if name != "name"} for job in jobs]
    return [
        RunOut(
            number=job.sweep_run,
            job_id=job.id,
            name=job.name,
            status=job.status,
            reason=job.reason,
            fields=fields,
            value=_value(sweep, job),
        )
        for job, fields in zip(jobs, differing(specs), strict=True)
    ]


def _value(sweep: Sweep, job: Job) -> float | None:
    if sweep.values is not None:
        found: Any = sweep.values.get(str(job.sweep_run))
    else:
        found = (job.latest_metrics or {}).get(sweep.metric["name"])
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
