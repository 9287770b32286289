"""`polar sweeps`, `presets`, `compare`: one spec varied, parts of specs, jobs side by side."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from polar.commands.service import AsJson, SpecFile, print_json, read_spec, service, tell
from polar.commands.tables import print_table
from polar.sdk.answers import Comparison

_Names = Annotated[str, typer.Option(help="Only these metrics, with commas.")]
sweeps = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="One spec with some fields varied: submit, list, show, cancel, compare.",
)
presets = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Parts of specs that jobs name: list, show, set, delete.",
)


@sweeps.command("submit")
def submit(spec: SpecFile, *, as_json: AsJson = False) -> None:
    """Submit a sweep from a JSON file and print its id."""
    with service() as client:
        made = client.sweeps.create(read_spec(spec))
    if as_json:
        print_json(made)
    else:
        print(made.id)


@sweeps.command("list")
def list_sweeps(
    status: Annotated[str, typer.Option(help="Only this status.")] = "", *, as_json: AsJson = False
) -> None:
    """List sweeps, newest first."""
    with service() as client:
        found = client.sweeps.page(status=status or None).items
    if as_json:
        print_json(found)
    else:
        print_table(("id", "name", "status"), ((s.id, s.name, s.status) for s in found))


@sweeps.command("show")
def show(sweep_id: str, *, as_json: AsJson = False) -> None:
    """Say how a sweep stands, with its runs and what differs in them."""
    with service() as client:
        found = client.sweeps.get(sweep_id)
    if as_json:
        print_json(found)
        return
    facts = (
        ("name", found.name),
        ("status", found.status),
        ("metric", f"{found.metric.name}, {found.metric.goal}"),
        ("best", None if found.best is None else found.best.job_id),
        ("reason", found.reason),
    )
    print_table((found.id, ""), facts)
    names = _all_names(run.fields for run in found.runs)
    print()
    print_table(
        ("run", "job", "status", "value", *names),
        ((r.number, r.job_id, r.status, r.value, *map(r.fields.get, names)) for r in found.runs),
    )


@sweeps.command("cancel")
def cancel(sweep_id: str, *, as_json: AsJson = False) -> None:
    """Cancel all jobs of a sweep; asking again is fine."""
    with service() as client:
        found = client.sweeps.cancel(sweep_id)
    if as_json:
        print_json(found)
    else:
        print(f"{sweep_id}: {found.status}")


@sweeps.command("compare")
def compare_sweep(sweep_id: str, names: _Names = "", *, as_json: AsJson = False) -> None:
    """Print the jobs of a sweep side by side; with --json their curves, too."""
    with service() as client:
        found = _whole(lambda c: client.sweeps.comparison(sweep_id, names=names or None, cursor=c))
    _show(found, names, as_json=as_json)


def compare(jobs: list[str], names: _Names = "", *, as_json: AsJson = False) -> None:
    """Print jobs side by side: what differs in their specs, and their metrics."""
    with service() as client:
        found = _whole(lambda c: client.sweeps.compare(jobs, names=names or None, cursor=c))
    _show(found, names, as_json=as_json)


def _show(found: Comparison, names: str, *, as_json: bool) -> None:
    """Print each job with the fields that differ and the last value of each metric.

    Without names those are the losses and what evaluations measured.
    """
    if as_json:
        print_json(found)
        return
    fields = _all_names(job.fields for job in found.jobs)
    told = _all_names(job.metrics for job in found.jobs)
    metrics = [each for each in told if names or each == "loss" or each.startswith("eval_")]
    print_table(("job", "name", "status", *fields, *metrics), _rows(found, fields, metrics))


def _rows(
    found: Comparison, fields: Sequence[str], metrics: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    for job in found.jobs:
        last = (f"{job.metrics[m].last:.6g}" if m in job.metrics else None for m in metrics)
        yield (job.id, job.name, job.status, *map(job.fields.get, fields), *last)


def _all_names(tables: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for each in tables for name in each))


def _whole(ask: Callable[[str | None], Comparison]) -> Comparison:
    page = ask(None)
    jobs = list(page.jobs)
    while page.next_cursor is not None:
        page = ask(page.next_cursor)
        jobs += page.jobs
    return page.model_copy(update={"jobs": jobs})


@presets.command("list")
def list_presets(*, as_json: AsJson = False) -> None:
    """List presets by name."""
    with service() as client:
        found = list(client.presets.list())
    if as_json:
        print_json(found)
    else:
        print_table(("name",), ((each.name,) for each in found))


@presets.command("show")
def show_preset(name: str, *, as_json: AsJson = False) -> None:
    """Print what a preset holds; with --json when it was kept, too."""
    with service() as client:
        found = client.presets.get(name)
    print_json(found if as_json else found.spec)


@presets.command("set")
def set_preset(name: str, body: SpecFile, *, as_json: AsJson = False) -> None:
    """Keep a preset from a JSON file, as `PUT /presets/{name}` takes it."""
    with service() as client:
        kept = client.presets.put(name, read_spec(body))
    if as_json:
        print_json(kept)
    else:
        print(f"{name}: kept")


@presets.command("delete")
def delete_preset(name: str, *, as_json: AsJson = False) -> None:
    """Delete a preset."""
    with service() as client:
        client.presets.delete(name)
    tell(f"{name}: deleted", as_json=as_json, name=name, deleted=True)
