"""`polar up`, `down`, `status`, `logs`: the embedded stack."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polar.commands.screen import fail, keep_stdout, out, visible
from polar.commands.service import AsJson, print_json, print_line, tell
from polar.stack.control import Door, StackFailed, launch, progress
from polar.stack.control import stop as stop_stack
from polar.stack.home import API_PORT, Home, default_home, in_use
from polar.stack.ports import LOOPBACK
from polar.stack.state import ProcessState, StackState, pid_of, running_state

TAIL = 50  # lines of each process's log
SIGNS = {
    "ready": "[green]✓[/]",
    "done": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "restarting": "[yellow]↻[/]",
    "starting": "[cyan]…[/]",
    "waiting": "[dim]·[/]",
    "stopping": "[cyan]…[/]",
    "stopped": "[dim]■[/]",
}


def up(
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running and return.")
    ] = False,
    listen: Annotated[
        str, typer.Option(help="Address for the API; others than loopback require keys.")
    ] = LOOPBACK,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for the API, this one or none; else a free one."),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Answer without a key; on loopback only.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start the database, the broker, the store and the service in one data folder.

    With --json the words go to stderr; on stdout stands where the service is, once it is ready.
    """
    if as_json:
        keep_stdout()
    home = Home(default_home())
    running = running_state(home)
    if running is not None:
        say_running(home, running)
        if as_json:
            print_json(_facts(home, running))
        return
    door = Door(listen, "none" if no_auth else "keys", port)
    state = start(home, door, attached=not detach)
    welcome(home, state, detached=detach)
    if as_json:
        print_line(_facts(home, state))
    if not detach:
        attend(home)


def _facts(home: Home, state: StackState | None) -> dict[str, Any]:
    """What programs are told of the stack."""
    if state is None:
        return {"running": False}
    key_file = home.secrets / "api-key" if state.auth == "keys" else None
    place = {"home": str(home.path), "key_file": key_file and str(key_file)}
    return {"running": True, **place, **state.model_dump(mode="json")}


def say_running(home: Home, running: StackState) -> None:
    """Say that a stack runs already; ends the command with an error when it isn't ready."""
    pid = pid_of(running)
    if running.role == "host":
        raise fail(f"a host of another service runs on {home.path}, pid {pid}: polar down stops it")
    if running.phase != "ready":
        raise fail(
            f"a stack is {running.phase} on {home.path} already, pid {pid}: wait until "
            "polar status says ready, or polar down"
        )
    out.print(
        f"already running: {running.url}, pid {pid}  ([dim]polar status[/], [dim]polar down[/])"
    )


def refuse_held(home: Home) -> None:
    """End the command when someone works on the data folder."""
    if who := home.holder():
        raise fail(in_use(home.path, who))


def start(home: Home, door: Door, *, attached: bool) -> StackState:
    """Start the stack and show how it comes up; ends the command when it doesn't."""
    if door.auth == "none" and door.host not in (LOOPBACK, "localhost", "::1"):
        raise fail(f"--no-auth would open the service to everyone who reaches {door.host}")
    refuse_held(home)
    try:
        guard = launch(home, door, attached=attached)
    except StackFailed as failure:
        raise fail(str(failure)) from None
    return follow_start(home, guard)


def follow_start(home: Home, guard: subprocess.Popen[bytes]) -> StackState:
    """Show how what was launched comes up; ends the command when it doesn't."""
    began = time.time()
    shown: set[str] = set()
    state: StackState | None = None
    try:
        with interrupt_stops(guard):
            for state in progress(home, guard):
                show_ready(state, shown, began)
    except StackFailed as failure:
        raise fail(str(failure)) from None
    except KeyboardInterrupt:
        guard.wait()
        raise fail("stopped", 130) from None
    if state is None:
        raise fail("the stack did not start")
    return state


@contextmanager
def interrupt_stops(guard: subprocess.Popen[bytes]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM stop the stack in order before they end this command."""

    def interrupt(number: int, frame: object) -> None:
        del frame, number
        guard.send_signal(signal.SIGTERM)
        raise KeyboardInterrupt

    earlier = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def show_ready(state: StackState, shown: set[str], began: float) -> None:
    """Print a line for each process that has become ready since the last call."""
    for name, process in state.processes.items():
        if name in shown or process.condition not in ("ready", "done", "failed"):
            continue
        shown.add(name)
        took = f"{max(process.since - began, 0):5.1f} s"
        address = f"  [dim]{process.address}[/]" if process.address else ""
        out.print(f"  {SIGNS[process.condition]} {name:<11}{took}{address}")


def welcome(home: Home, state: StackState, *, detached: bool) -> None:
    """Say where the service is and how to use it."""
    port = state.url.rpartition(":")[2]
    if port != str(API_PORT):
        out.print(f"[yellow]the API listens on port {port}[/]")
    out.print(f"\n[bold green]POLAR is up[/]  {state.url}   [dim]data in {home.path}[/]")
    if state.auth == "keys":
        key_file = home.secrets / "api-key"
        out.print("Your key is in a file of mode 600:", soft_wrap=True)
        out.print(f"  [bold]export POLAR_API_KEY=\"$(cat '{key_file}')\"[/]", soft_wrap=True)
        header = ' -H "Authorization: Bearer $POLAR_API_KEY"'
    else:
        header = ""
    out.print(f"  [bold]curl {state.url}/jobs{header}[/]", soft_wrap=True)
    slow = [name for name, each in state.processes.items() if each.condition == "starting"]
    if slow:
        out.print(f"[dim]still starting, nothing waits for it: {', '.join(slow)}[/]")
    ending = "polar down stops it" if detached else "Ctrl-C stops it"
    out.print(f"[dim]{ending}; polar status, polar logs and polar doctor tell more[/]")


def attend(home: Home) -> None:
    """Stay in the foreground: tell what restarts, and stop the stack on Ctrl-C."""
    seen: dict[str, ProcessState] = {}
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        while (state := running_state(home)) is not None:
            for name, process in state.processes.items():
                if name in seen and seen[name].condition != process.condition:
                    stamp = time.strftime("%H:%M:%S")
                    out.print(f"  {SIGNS[process.condition]} {stamp} {name} {process.condition}")
                seen[name] = process
            time.sleep(0.3)
    except KeyboardInterrupt:
        out.print("\nstopping …")
        out.print(how_it_stopped(stop_it(home)))
        return
    raise fail("the stack has ended; polar logs stack tells why")


def down(*, as_json: AsJson = False) -> None:
    """Stop the stack in order: running jobs write a checkpoint first."""
    home = Home(default_home())
    seconds = stop_it(home)
    stopped = seconds is not None
    tell(how_it_stopped(seconds), as_json=as_json, home=str(home.path), stopped=stopped)


def how_it_stopped(seconds: float | None) -> str:
    """Return the words for what `stop_it` returns."""
    return "nothing is running" if seconds is None else f"stopped in {seconds:.1f} s"


def stop_it(home: Home) -> float | None:
    """Stop the stack and return the seconds that it took; None where none runs.

    Ends the command when that can't be done.
    """
    began = time.monotonic()
    try:
        stopped = stop_stack(home)
    except StackFailed as failure:
        raise fail(str(failure)) from None
    if not stopped:
        refuse_held(home)
        return None
    return time.monotonic() - began


def status(*, as_json: bool) -> None:
    """Show every process; exit code 1 when the stack does not run."""
    home = Home(default_home())
    state = running_state(home)
    if as_json:
        print_json(_facts(home, state))
    elif state is None:
        who = home.holder()
        out.print(f"in use by {who}" if who else "not running  ([dim]polar up[/] starts it)")
    else:
        what = f"{state.url}   [dim]keys: {state.auth}[/]"
        out.print(f"[bold]{state.phase}[/]  {'a host' if state.role == 'host' else what}")
        out.print(table(state))
    if state is None:
        raise SystemExit(1)


def table(state: StackState) -> Table:
    """Return the processes as a table."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "process", "state", "pid", "for", "restarts", "address"):
        drawn.add_column(column)
    for name, each in state.processes.items():
        drawn.add_row(
            SIGNS[each.condition],
            name,
            each.condition,
            str(each.pid or ""),
            _duration(time.time() - each.since),
            str(each.restarts or ""),
            each.address or "",
        )
    return drawn


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def logs(process: str, *, follow: bool, tail: int, as_json: bool) -> None:
    """Show what the processes wrote, with `tail` lines of each to begin with."""
    folder = default_home() / "logs"
    found = sorted(folder.glob(f"{process or '*'}.log"))
    if not found:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log"))) or "none yet"
        raise fail(f"no log of {process or 'any process'} in {folder}; there are: {known}")
    show = _Show(prefix=not process, as_json=as_json)
    places = {path: _show_tail(path, tail, show) for path in found}
    while follow:
        for path, place in places.items():
            places[path] = _show_new(path, place, show)
        time.sleep(0.3)


@dataclass(frozen=True)
class _Show:
    """How lines are printed: with the process's name before them, or as JSON, one a line."""

    prefix: bool
    as_json: bool

    def __call__(self, path: Path, lines: list[bytes]) -> None:
        for line in lines:
            text = visible(line.decode(errors="replace"))
            if self.as_json:
                text = json.dumps({"process": path.stem, "line": text}, ensure_ascii=False)
            elif self.prefix:
                text = f"{path.stem:<11}│ {text}"
            print(text, flush=True)


def _show_tail(path: Path, count: int, show: _Show) -> int:
    content = path.read_bytes()
    show(path, content.splitlines()[-count:])
    return len(content)


def _show_new(path: Path, place: int, show: _Show) -> int:
    size = path.stat().st_size
    if size < place:  # moved aside meanwhile
        place = 0
    with path.open("rb") as file:
        file.seek(place)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    show(path, whole.splitlines())
    return place + len(whole)
