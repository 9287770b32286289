"""`polar status` and `logs`, of a job or of the stack here; `metrics` and `checkpoints`."""

import time
from typing import Annotated

import typer

from polar.commands import stack
from polar.commands.screen import visible
from polar.commands.service import AsJson, JobId, print_json, print_line, service
from polar.commands.tables import print_table, size, when
from polar.commands.watching import print_job
from polar.follow import sparkline
from polar.sdk.jobs import ENDED

_LOOK_EVERY = 1.0


def status(
    job_id: Annotated[str, typer.Argument(help="A job; the stack on this machine without.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Say where a job stands; without one, show every process of the stack here.

    Exit code 1 when no stack runs.
    """
    if not job_id:
        stack.status(as_json=as_json)
        return
    with service() as client:
        job = client.jobs.get(job_id)
    if as_json:
        print_json(job)
    else:
        print_job(job)


def logs(
    what: Annotated[
        str, typer.Argument(help="A job, or a process of `polar status`; all processes without.")
    ] = "",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    tail: Annotated[
        int | None, typer.Option(min=1, help="Only the newest so many lines; 50 of a process.")
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Of a job: only this attempt.")] = None,
    rank: Annotated[int | None, typer.Option(help="Of a job: only this process.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job logged, or what the processes here wrote."""
    if not what.startswith("job_"):
        stack.logs(what, follow=follow, tail=tail or stack.TAIL, as_json=as_json)
        return
    with service() as client:
        after: int | None = None
        while True:
            ended = client.jobs.get(what).status in ENDED
            lines = client.jobs.log_lines(what, after=after, tail=tail, attempt=attempt, rank=rank)
            _print_log(lines.text, as_json=as_json)
            if not follow or ended:
                return
            after, tail = lines.next_after, None
            time.sleep(_LOOK_EVERY)


def _print_log(text: str, *, as_json: bool) -> None:
    for line in text.splitlines():
        if as_json:
            print_line({"line": line})
        else:
            print(visible(line), flush=True)


def metrics(
    job_id: JobId,
    names: Annotated[list[str] | None, typer.Argument(help="Only these, such as loss.")] = None,
    *,
    max_points: Annotated[int, typer.Option(min=4, max=100_000, help="Points of a series.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Show what a job measured: the first and last value of each series, and its curve."""
    with service() as client:
        found = client.jobs.metrics(job_id, names=names or None, max_points=max_points)
    if as_json:
        print_json(found)
        return
    rows = []
    for name, points in sorted(found.series.items()):
        values = [value for _, value, _ in points]
        first, last = f"{values[0]:.6g}", f"{values[-1]:.6g}"
        rows.append((name, points[-1][0], first, last, sparkline(values)))
    print_table(("metric", "step", "first", "last", "curve"), rows)


def checkpoints(job_id: JobId, *, as_json: AsJson = False) -> None:
    """List a job's checkpoints, the one to resume from first."""
    with service() as client:
        found = client.jobs.checkpoints(job_id)
    if as_json:
        print_json(found)
        return
    rows = (
        (each.id, each.step, each.attempt, size(each.size), when(each.created_at)) for each in found
    )
    print_table(("id", "step", "attempt", "size", "created"), rows)
