"""`polar sweeps`, `presets`, `compare`: one spec varied, parts of specs, jobs side by side."""

from collections.abc import Callable
from typing import Annotated

import typer

from polar.commands.service import AsJson, SpecFile, print_json, read_spec, service
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
def show(sweep_id: str) -> None:
    """Print a sweep with its jobs as JSON."""
    with service() as client:
        print_json(client.sweeps.get(sweep_id))


@sweeps.command("cancel")
def cancel(sweep_id: str) -> None:
    """Cancel all jobs of a sweep; asking again is fine."""
    with service() as client:
        print(f"{sweep_id}: {client.sweeps.cancel(sweep_id).status}")


@sweeps.command("compare")
def compare_sweep(sweep_id: str, names: _Names = "") -> None:
    """Print the jobs of a sweep side by side as JSON."""
    with service() as client:
        print_json(
            _whole(lambda c: client.sweeps.comparison(sweep_id, names=names or None, cursor=c))
        )


def compare(jobs: list[str], names: _Names = "") -> None:
    """Print jobs side by side as JSON: what differs in their specs, and their metrics."""
    with service() as client:
        print_json(_whole(lambda c: client.sweeps.compare(jobs, names=names or None, cursor=c)))


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
def show_preset(name: str) -> None:
    """Print a preset as JSON."""
    with service() as client:
        print_json(client.presets.get(name))


@presets.command("set")
def set_preset(name: str, body: SpecFile) -> None:
    """Keep a preset from a JSON file, as `PUT /presets/{name}` takes it."""
    with service() as client:
        client.presets.put(name, read_spec(body))
    print(f"{name}: kept")


@presets.command("delete")
def delete_preset(name: str) -> None:
    """Delete a preset."""
    with service() as client:
        client.presets.delete(name)
    print(f"{name}: deleted")
