"""`polar watch`, `replay`: a job as it goes, or as it went; and `polar events` of all jobs."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape

from polar.commands.screen import out
from polar.commands.service import OUTCOMES, AsJson, Exit, JobId, print_line, service
from polar.follow import Seen, follow
from polar.sdk.client import Client
from polar.sdk.jobs import Job
from polar.sse import Frame

_After = Annotated[int, typer.Option(help="Begin after the event of this number.")]


def watch(job_id: JobId, *, after: _After = 0, as_json: AsJson = False) -> None:
    """Watch a job until it ends or is paused; the exit code says how.

    With --json one event a line.
    """
    with service() as client:
        frames = _until_paused(client, job_id, client.jobs.events(job_id, after=after))
        if as_json:
            for frame in frames:
                print_line(frame.body)
        else:
            follow(job_id, frames, out)
        job = client.jobs.get(job_id)
    if not as_json:
        message = f": {job.message}" if job.message else ""
        out.print(f"[bold]{job.status}[/]{escape(message)}")
    if code := OUTCOMES.get(job.status, Exit.ERROR):
        raise SystemExit(code)


def _until_paused(client: Client, job_id: str, frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yield the frames up to the end, or to a pause that holds: its stream would go on for days."""
    for frame in frames:
        yield frame
        paused = frame.type == "status" and frame.data.get("status") == "paused"
        # one of a replay may be long over
        if paused and client.jobs.get(job_id).status == "paused":
            return


def replay(
    job_id: JobId,
    *,
    after: _After = 0,
    types: Annotated[str, typer.Option(help="Only these, with commas: status,metrics.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print again what has happened to a job, from the start; with --json one event a line."""
    seen = Seen(job_id)
    with service() as client:
        while True:
            page = client.jobs.event_page(job_id, after=after, types=types or None)
            for event in page.data:
                frame = Frame(str(event.seq), event.model_dump(mode="json"))
                if as_json:
                    print_line(frame.body)
                else:
                    _print_event(seen, frame)
            after = page.next_after
            if not page.has_more:
                return


def _print_event(seen: Seen, frame: Frame) -> None:
    line = seen.take(frame)
    if line is None and frame.type == "metrics":
        line = "  ".join(f"{name} {value}" for name, value in frame.data.items())
    if line is not None:
        stamp = f"{frame.time:%H:%M:%S}" if frame.time else ""
        out.print(f"[dim]{stamp}[/] {escape(line)}", soft_wrap=True)


def events(
    *,
    after: Annotated[str, typer.Option(help="Begin after this id of this stream; 0: all.")] = "",
    types: Annotated[str, typer.Option(help="Only these, with commas: status,metrics.")] = "",
    as_json: AsJson = False,
) -> None:
    """Follow what happens to all jobs, until Ctrl-C; with --json one event a line."""
    with service() as client:
        for frame in client.events.follow(after=after or None, types=types or None):
            if as_json:
                print_line({"id": frame.id, **frame.body})
            else:
                words = "  ".join(f"{name} {value}" for name, value in frame.data.items())
                out.print(f"{frame.job_id} {frame.type}  {escape(words)}", soft_wrap=True)


def print_job(job: Job) -> None:
    """Print where a job stands."""
    progress = job.progress or {}
    step = f"{progress['step']} of {progress.get('total_steps', '?')}" if "step" in progress else ""
    loss = (job.latest_metrics or {}).get("loss")
    lines = {
        "name": job.name,
        "status": " · ".join(filter(None, (job.status, job.phase, job.reason))),
        "message": job.message,
        "waits for": job.waiting_for,
        "step": step,
        "loss": None if loss is None else f"{loss:.4f}",
        "attempts": f"{len(job.attempts)} of {job.max_attempts}",
        "machine": job.attempts[-1].machine if job.attempts else None,
        "model": job.external_refs.model and job.external_refs.model.name,
        "created": f"{job.created_at:%Y-%m-%d %H:%M:%S}",
    }
    out.print(f"[bold]{job.id}[/]")
    for name, value in lines.items():
        if value:
            out.print(f"  [dim]{name:<10}[/] {escape(str(value))}", soft_wrap=True)
