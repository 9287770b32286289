"""`polar worker drain`: take a host out of service, and back."""

from typing import Annotated

import typer

from polar.commands import join
from polar.commands.screen import fail, out
from polar.commands.service import AsJson, print_json, service
from polar.sdk.client import Client

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def worker() -> None:
    """Hosts that run the jobs."""


app.command()(join.join)
app.command(name="addresses")(join.print_addresses)


@app.command()
def drain(
    host: Annotated[str, typer.Option(help="The host's id; not needed where there is one.")] = "",
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Have its jobs write a checkpoint and go on elsewhere.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let it get jobs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a host no more jobs; those that run there finish, or move with --now."""
    if now and undo:
        raise fail("--now and --undo exclude each other")
    with service() as client:
        host = host or only_host(client)
        told = client.targets.undrain(host) if undo else client.targets.drain(host, now=now)
    busy = sum(device.busy for device in told.devices)
    if as_json:
        print_json(told)
    elif undo:
        out.print(f"{told.id}: gets jobs again")
    else:
        how = "asked to move" if told.hand_back else "finishing"
        out.print(f"{told.id}: gets no more jobs; {busy} of its devices are busy, {how}")


def only_host(client: Client) -> str:
    """Return the id of the one host that there is; ends the command when there is a choice."""
    local = next(target for target in client.targets.list() if target.name == "local")
    hosts = {worker.id: worker for worker in local.workers if worker.kind == "host"}
    online = [name for name, worker in hosts.items() if worker.online]
    if len(online) == 1:
        return online[0]
    known = ", ".join(sorted(hosts)) or "none"
    raise fail(f"which host? --host takes one of: {known}")
