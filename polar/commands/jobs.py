"""`polar submit`, `jobs`, `watch`, `cancel`, `pause`, `resume`: jobs of a service anywhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from polar.client import Client, ClientError
from polar.commands.screen import fail, out
from polar.connection import NoService, connect
from polar.follow import follow

JobId = Annotated[str, typer.Argument(help="The job's id, as `polar jobs` shows it.")]


@contextmanager
def service() -> Iterator[Client]:
    """Connect; what the service refuses ends the command with its message."""
    try:
        with connect() as client:
            yield client
    except (ClientError, NoService) as error:
        raise fail(str(error)) from None


def submit(
    spec: Annotated[Path, typer.Argument(help="A JobSpec as a JSON file.", exists=True)],
    *,
    follow_it: Annotated[
        bool, typer.Option("--watch", "-w", help="Watch it until it ends.")
    ] = False,
) -> None:
    """Submit a job and print its id."""
    try:
        body = json.loads(spec.read_text(encoding="utf-8"))
    except ValueError as error:
        raise fail(f"{spec} is not JSON: {error}") from None
    with service() as client:
        job = client.submit(body)
        out.print(job["id"])
        for warning in job.get("warnings", []):
            out.print(f"[yellow]warning:[/] {escape(warning['message'])}")
    if follow_it:
        watch(job["id"])


def list_jobs(
    status: Annotated[str, typer.Option(help="Only this status.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=200)] = 20,
) -> None:
    """List the newest jobs."""
    with service() as client:
        filters: dict[str, str | int] = {"limit": limit}
        if status:
            filters["status"] = status
        jobs = client.jobs(**filters)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("id", "name", "status", "phase", "step", "loss", "created"):
        table.add_column(column)
    for job in jobs:
        progress, metrics = job.get("progress") or {}, job.get("latest_metrics") or {}
        step = (
            f"{progress['step']}/{progress.get('total_steps', '?')}" if "step" in progress else ""
        )
        loss = f"{metrics['loss']:.3f}" if "loss" in metrics else ""
        words = (job["id"], escape(job["name"]), job["status"], job.get("phase") or "", step, loss)
        table.add_row(*words, job["created_at"][:19].replace("T", " "))
    out.print(table)


def watch(job_id: JobId) -> None:
    """Watch a job until it ends; exit code 0 when it succeeded."""
    with service() as client:
        seen = follow(job_id, client.events(job_id), out)
        job = client.get(job_id)
    message = f": {job['message']}" if job.get("message") else ""
    out.print(f"[bold]{seen.status}[/]{escape(message)}")
    if seen.status != "succeeded":
        raise SystemExit(1)


def cancel(job_id: JobId) -> None:
    """Cancel a job; asking again is fine."""
    with service() as client:
        job = client.cancel(job_id)
    out.print(f"{job['id']}: {job['status']}, cancellation asked for")


def pause(job_id: JobId) -> None:
    """Pause a job: it writes a checkpoint and frees its machine; asking again is fine."""
    with service() as client:
        job = client.pause(job_id)
    out.print(f"{job['id']}: {job['status']}{'' if job['status'] == 'paused' else ', pausing'}")


def resume(job_id: JobId) -> None:
    """Resume a paused job, or take a pause back; asking again is fine."""
    with service() as client:
        job = client.resume(job_id)
    out.print(f"{job['id']}: {job['status']}")
