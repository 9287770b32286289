"""`polar list`, `retry`, `clone`, …: jobs of a service anywhere."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from polar.commands.screen import out
from polar.commands.service import (
    AsJson,
    JobId,
    assignments,
    print_json,
    service,
    tell,
)
from polar.commands.tables import print_table, when
from polar.commands.watching import watch
from polar.sdk.answers import JobOut, Summary

_COLUMNS = ("id", "name", "status", "phase", "step", "loss", "created")
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Watch it until it ends.")]


def retry(
    job_id: JobId,
    *,
    from_scratch: Annotated[
        bool, typer.Option(help="Do not start from the newest checkpoint.")
    ] = False,
    follow_it: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Try a job that ended again, as a new one; print its id."""
    with service() as client:
        job = client.jobs.retry(job_id, from_scratch=from_scratch)
    tell_new(job, follow_it=follow_it, as_json=as_json)


def clone(
    job_id: JobId,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="What is different: training.max_steps=20; =null removes."),
    ] = None,
    *,
    follow_it: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job's spec again, with changes; print the new job's id."""
    changes = assignments(overrides or [])
    with service() as client:
        job = client.jobs.clone(job_id, changes)
    tell_new(job, follow_it=follow_it, as_json=as_json)


def tell_new(job: JobOut, *, follow_it: bool, as_json: bool) -> None:
    """Print a new job's id and warnings, and watch it where that is asked for."""
    if as_json and not follow_it:
        print_json(job)
        return
    if not as_json:
        print(job.id)
        for warning in job.warnings:
            out.print(f"[yellow]warning:[/] {escape(warning.message)}")
    if follow_it:
        watch(job.id, as_json=as_json)


def list_jobs(  # noqa: PLR0913 - the filters of the API
    status: Annotated[
        list[str] | None, typer.Option("--status", "-s", help="Only this status; repeatable.")
    ] = None,
    task: Annotated[str, typer.Option(help="Only this task type.")] = "",
    target: Annotated[str, typer.Option(help="Only jobs for this target.")] = "",
    backend: Annotated[str, typer.Option(help="Only this library.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Only with name=value; repeatable.")
    ] = None,
    search: Annotated[str, typer.Option("--search", "-q", help="Part of the name.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200)] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs."""
    labels = {name: str(value) for name, value in assignments(label or []).items()}
    with service() as client:
        page = client.jobs.page(
            status=status,
            task=task or None,
            target=target or None,
            backend=backend or None,
            labels=labels,
            q=search or None,
            limit=limit,
        )
    if as_json:
        print_json(page.items)
    else:
        print_table(_COLUMNS, map(_row, page.items))


def _row(job: Summary) -> tuple[Any, ...]:
    progress, metrics = job.progress or {}, job.latest_metrics or {}
    step = f"{progress['step']}/{progress.get('total_steps', '?')}" if "step" in progress else ""
    loss = f"{metrics['loss']:.3f}" if "loss" in metrics else ""
    return (job.id, job.name, job.status, job.phase, step, loss, when(job.created_at))


def cancel(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Cancel a job; asking again is fine."""
    with service() as client:
        job = client.jobs.cancel(job_id)
    _tell(job, f"{job.status}, cancellation asked for", as_json=as_json)


def pause(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Pause a job: it writes a checkpoint and frees its machine; asking again is fine."""
    with service() as client:
        job = client.jobs.pause(job_id)
    _tell(job, job.status if job.status == "paused" else f"{job.status}, pausing", as_json=as_json)


def resume(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Resume a paused job, or take a pause back; asking again is fine."""
    with service() as client:
        job = client.jobs.resume(job_id)
    _tell(job, job.status, as_json=as_json)


def push(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Have what did not reach the hub pushed again."""
    with service() as client:
        job = client.jobs.retry_push(job_id)
    hub = job.external_refs.hub
    _tell(job, "nothing to push" if hub is None else f"{hub.repo_id} {hub.state}", as_json=as_json)


def edit(
    job_id: JobId,
    *,
    name: Annotated[str, typer.Option(help="Its new name.")] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="name=value; replaces all labels.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=-100, max=100)] = None,
    as_json: AsJson = False,
) -> None:
    """Change a job's name, labels or priority."""
    labels = None if label is None else {k: str(v) for k, v in assignments(label).items()}
    with service() as client:
        job = client.jobs.update(job_id, name=name or None, labels=labels, priority=priority)
    _tell(job, f"{job.name}, priority {job.priority}", as_json=as_json)


def delete(
    job_id: JobId,
    *,
    artifacts: Annotated[bool, typer.Option(help="What it published, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a job that has ended."""
    with service() as client:
        client.jobs.delete(job_id, artifacts=artifacts)
    tell(f"{job_id}: deleted", as_json=as_json, id=job_id, deleted=True)


def _tell(job: JobOut, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        out.print(escape(f"{job.id}: {words}"), soft_wrap=True)
