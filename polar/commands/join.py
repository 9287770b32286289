"""`polar worker join` and `polar worker addresses`: a second machine that trains."""

import os
import shlex
from typing import Annotated

import typer

from polar.commands.screen import fail, keep_stdout, out
from polar.commands.service import AsJson, print_json, print_line
from polar.commands.stack import attend, follow_start, refuse_held
from polar.stack.control import StackFailed, launch_host
from polar.stack.home import Home, default_home
from polar.stack.joined import ADDRESSES, addresses, check, key_file
from polar.stack.processes import Stack
from polar.stack.services import ServiceFailed
from polar.stack.state import running_state


def join(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running and return.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make this machine a host that trains for a service on another one.

    It needs POLAR_DATABASE_URL, POLAR_BROKER_URL and the S3 variables of the service, in the
    environment or in polar.toml; polar down ends it.
    """
    if as_json:
        keep_stdout()
    home = Home(default_home())
    refuse_held(home)
    try:
        check(addresses(os.environ, home.settings()))
        guard = launch_host(home, attached=not detach)
    except (ServiceFailed, StackFailed) as failure:
        raise fail(str(failure)) from None
    follow_start(home, guard)
    name = (home.run / "worker-id").read_text(encoding="utf-8").strip()
    out.print(f"\n[bold green]this host trains[/] as {name}   [dim]data in {home.path}[/]")
    if not key_file(home).exists():
        out.print(
            f"[yellow]{key_file(home)} is not there: jobs that use stored secrets fail here. Copy "
            "the service's secrets/key to it (mode 600)[/]"
        )
    if as_json:
        print_line({"id": name, "home": str(home.path)})
    if not detach:
        attend(home)


def print_addresses(*, as_json: AsJson = False) -> None:
    """Print what another machine needs to join the stack that runs here; it is secret."""
    home = Home(default_home())
    state = running_state(home)
    ports = home.settings().get("ports")
    if state is None or state.role != "service" or not isinstance(ports, dict):
        raise fail(f"no service runs on {home.path}: polar up starts one")
    values = Stack(home, ports, state.identity).values
    if as_json:
        print_json({name: values[name] for name in ADDRESSES})
        return
    needed = [ports[name] for name in ("postgres", "valkey", "s3_s3")]
    forwards = " ".join(f"-L {port}:127.0.0.1:{port}" for port in needed)
    print("# The service listens on its own machine alone. On the other one, open a tunnel to it:")
    print(f"#   ssh -N {forwards} <this machine>")
    print(f"# and copy {home.secrets / 'key'} to secrets/key of its data folder (mode 600).")
    for name in ADDRESSES:
        print(f"export {name}={shlex.quote(values[name])}")
