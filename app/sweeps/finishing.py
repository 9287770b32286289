"""The end of a sweep: its best run is found, registered where that is wanted, and told of.

What the runs were worth is read first; then one transaction writes everything, and only while the
sweep is still running. So a process that dies in between leaves it as it was, to the next one.
A sweep that cannot be finished now lets the others go first.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.orm import Session

from app.comparison.service import read_curves
from app.db import transaction
from app.errors import Unavailable
from app.jobs.lifecycle import Status
from app.models import Job, Sweep
from app.registry.service import NewVersion, create_version
from app.sweeps import store, view
from app.webhooks.outbox import announce

Values = dict[int, float]
Damaged = dict[int, str]
"""Number of a run whose metrics cannot be read → why."""

DAMAGED_HOURS = 24.0
"""So long damaged metrics are looked at again: an operator may bring the object back."""

_AGAIN = 10.0  # seconds
_FEWEST = 4  # points of a series: the first and last, the smallest and largest
_NAMED = 10  # runs that a reason names


def finish_next() -> int:
    """Finish a sweep whose runs have all ended; 0 when there is none.

    Raises what keeps it from that, Unavailable for one, when the sweep has gone behind the others.
    """
    with transaction() as session:
        row = store.next_ended(session)
    if row is None:
        return 0
    try:
        _finish_one(row)
    except Exception:
        with transaction() as session:
            store.postpone(session, row.id, _AGAIN)
        raise
    return 1


def _finish_one(row: Row[Any]) -> None:
    with transaction() as session:
        sweep = session.get_one(Sweep, row.id)
        succeeded = [job for job in store.runs(session, row.id) if job.status == Status.SUCCEEDED]
    values, damaged = _values(succeeded, sweep.metric)
    with transaction() as session:
        locked = store.get_sweep(session, row.project_id, row.id, lock=True)
        if locked is None or locked.status != "running":
            return
        if damaged and store.postpone_damaged(
            session, row.id, _unread(damaged), _AGAIN, DAMAGED_HOURS
        ):
            return
        _finish(session, locked, values, damaged)


def _unread(damaged: Damaged) -> str:
    numbers = sorted(damaged)
    named = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"the metrics of run {named}{more} cannot be read: {damaged[numbers[0]]}"


def _values(jobs: Sequence[Job], metric: Mapping[str, str]) -> tuple[Values, Damaged]:
    """What each run that succeeded is worth; one that ended with no number is left out."""
    values: Values = {}
    damaged: Damaged = {}
    for job in jobs:
        number = job.sweep_run or 0
        try:
            value = _value(job, metric)
        except Unavailable as error:
            if error.code != "archive_damaged":
                raise
            damaged[number] = error.message
            continue
        if value is not None:
            values[number] = value
    return values, damaged


def _value(job: Job, metric: Mapping[str, str]) -> float | None:
    name = metric["name"]
    curves = read_curves(job.project_id, job.id, f"{name},epoch", _FEWEST)
    points = curves.get(name, [])
    if not points:
        return None
    # Numbers that are none (NaN) are not reported. Training ends with an evaluation, so one whose
    # measure ends before the run does has come to no number.
    end = max((steps[-1][0] for steps in curves.values()), default=0)
    if name.startswith("eval_") and points[-1][0] < end:
        return None
    if metric["by"] == "final":
        return points[-1][1]
    choose = min if metric["goal"] == "min" else max
    return choose(value for _, value in points)


def best_of(values: Values, goal: str) -> int | None:
    """Return the number of the best run, of several the earliest; None without any."""
    sign = 1 if goal == "min" else -1
    return min(values, key=lambda number: (sign * values[number], number), default=None)


def _finish(session: Session, sweep: Sweep, values: Values, damaged: Damaged) -> None:
    number, best = _best(session, sweep, values)
    sweep.reason = None
    sweep.values = {str(run): value for run, value in values.items()}
    sweep.status = "finished" if sweep.cancel_requested_at is None else "cancelled"
    sweep.finished_at = session.scalars(select(func.now())).one()
    if best is None or number is None:
        sweep.reason = _why_none(session, sweep)
    else:
        model = _registered(session, sweep, best)
        sweep.best = {"job_id": best.id, "number": number, "value": values[number], "model": model}
    if damaged:
        said = [sweep.reason] if sweep.reason else []
        sweep.reason = "; ".join([*said, f"{_unread(damaged)}, so it was left out"])
    session.flush()
    counts = store.counts(session, [sweep.id])[sweep.id]
    shown = view.summary(sweep, counts).model_dump(mode="json")
    announce(
        session, sweep.project_id, "sweep.finished", lambda: {"sweep": shown}, f"/sweeps/{sweep.id}"
    )


def _best(session: Session, sweep: Sweep, values: Values) -> tuple[int | None, Job | None]:
    """Return the best run, locked; one that was deleted meanwhile is worth nothing any more."""
    while (number := best_of(values, sweep.metric["goal"])) is not None:
        query = select(Job).where(Job.sweep_id == sweep.id, Job.sweep_run == number)
        best = session.scalar(query.with_for_update(key_share=True))
        if best is not None:
            return number, best
        del values[number]
    return None, None


def _why_none(session: Session, sweep: Sweep) -> str:
    succeeded = store.counts(session, [sweep.id])[sweep.id].get(Status.SUCCEEDED, 0)
    if not succeeded:
        return "no run has succeeded"
    name = sweep.metric["name"]
    return f"none of the {succeeded} runs that succeeded has come to a number for {name}"


def _registered(session: Session, sweep: Sweep, best: Job) -> dict[str, Any] | None:
    """Register the best run's model where that is wanted; one that a run registered is named."""
    if not sweep.register_best:
        return None
    if sweep.status == "cancelled":
        sweep.reason = "it was cancelled, so nothing was registered"
        return None
    if best.unregistered is None:
        sweep.reason = "the best run has made no model that could be registered"
        return None
    name = (best.spec.get("publish") or {}).get("name") or sweep.name
    new = NewVersion(project_id=sweep.project_id, name=name, job_id=best.id, **best.unregistered)
    version = create_version(session, new)
    return {"name": version.name, "version": version.version}
