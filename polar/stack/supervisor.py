"""Starts the processes in order, restarts what ends, and stops all of it in reverse.

python -m polar.stack.supervisor OPTIONS     (JSON: home, host, auth)
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, SubprocessError
from typing import Any

import psycopg

from polar.stack import proctree, spawn
from polar.stack.control import HELD
from polar.stack.home import AlreadyRunning, Home, Unusable, choose_ports
from polar.stack.ports import is_free
from polar.stack.processes import PORTS, WORKERS, Process, Stack
from polar.stack.services import ServiceFailed
from polar.stack.state import Condition, ProcessState, StackState, write_state

POLL = 0.2  # seconds between two looks at a process
TIDY = 2.0  # seconds between two rounds of housekeeping
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.5, 30.0
HEALTHY = 30.0  # seconds after which a restart starts from the first back-off again
PORT_TRIES = 3  # how often ports are chosen that others then take
START_TRIES = 3  # ends before the first readiness that a start survives
STOP_GRACE, DETACHED_GRACE = 12.0, 45.0
LEASE_HOLDER = "polar-lease"  # the name that worker.supervisor gives itself
LOG_LIMIT = 50_000_000  # bytes


def back_off(ends: int) -> float:
    """Return the seconds to wait after the `ends`-th quick end in a row."""
    return min(FIRST_BACK_OFF * 2.0 ** min(ends - 1, 10), LONGEST_BACK_OFF)


async def ended(child: Popen[bytes]) -> int:
    """Return the exit code of `child` once it has ended."""
    while (code := child.poll()) is None:  # noqa: ASYNC110 - an end sets no event
        await asyncio.sleep(POLL)
    return code


class StartFailed(Exception):
    """A required process did not become ready."""


class PortStolen(StartFailed):
    """A port that was free when it was chosen is another program's now."""


class Supervisor:
    """Keeps one list of processes running and says so in the state file."""

    def __init__(
        self,
        home: Home,
        processes: Sequence[Process],
        state: StackState,
        detached_grace: float = DETACHED_GRACE,
    ) -> None:
        self.home = home
        self.detached_grace = detached_grace
        self.processes = sorted(processes, key=lambda each: each.order)
        self.state = state
        self.running: dict[str, Popen[bytes]] = {}
        self.ready = {each.name: asyncio.Event() for each in processes}
        self.stopping = asyncio.Event()
        self.asked = False  # to stop; a start that failed stops by itself
        self.port_taken = False  # why the start failed
        for each in self.processes:
            state.processes[each.name] = ProcessState(
                required=each.required, address=each.address, since=time.time()
            )

    def ask(self) -> None:
        """Ask for the stop, also while a start that failed is cleared away."""
        self.asked = True
        self.stopping.set()

    async def run(self) -> int:
        """Run until asked to stop; 1 when the start failed."""
        write_state(self.home, self.state)
        keepers = [asyncio.create_task(self.keep(each)) for each in self.processes]
        housekeeper = asyncio.create_task(self.tidy())
        code = 0
        try:
            await self.started(keepers)
            await self.stopping.wait()
        except (StartFailed, ServiceFailed) as failure:
            self.state.message = str(failure)
            self.port_taken = isinstance(failure, PortStolen)
            code = 1
        self.stopping.set()
        self.state.phase = "stopping"
        await self.stop()
        if self.asked and self.port_taken:  # no failure: others would have been chosen
            self.state.message, code = "", 0
        for task in (*keepers, housekeeper):
            task.cancel()
        await asyncio.gather(*keepers, housekeeper, return_exceptions=True)
        self.state.phase = "failed" if code else "stopping"
        write_state(self.home, self.state)
        return code

    async def started(self, keepers: list[asyncio.Task[None]]) -> None:
        """Return when every required process is ready or a stop is asked for."""
        needed = [self.ready[each.name].wait() for each in self.processes if each.required]
        everything = asyncio.gather(*needed)
        stop = asyncio.create_task(self.stopping.wait())
        watched: set[asyncio.Future[Any]] = {everything, stop, *keepers}
        try:
            while not everything.done() and not stop.done():
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()  # raises what made a keeper end
        finally:
            stop.cancel()
            everything.cancel()
            await asyncio.gather(stop, everything, return_exceptions=True)
        if not self.stopping.is_set():
            self.state.phase = "ready"
            write_state(self.home, self.state)

    async def keep(self, process: Process) -> None:
        """Start `process` when its turn comes, and again whenever it ends."""
        for each in self.processes:
            if each.order < process.order and each.required:
                await self.ready[each.name].wait()
        ends = 0
        while not self.stopping.is_set():
            began = time.monotonic()
            code = await self.run_once(process)
            if self.stopping.is_set() or (process.once and code == 0):
                return
            self.look_at_ports(process)
            ends = 1 if time.monotonic() - began > HEALTHY else ends + 1
            if not self.ready[process.name].is_set() and ends >= START_TRIES and process.required:
                self.give_up(process, f"ended with code {code}")
            self.note(process, "restarting", exit_code=code)
            self.state.processes[process.name].restarts += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), back_off(ends))

    async def run_once(self, process: Process) -> int:
        """Run `process` from its preparation to its end; return its exit code."""
        if process.prepare and not await self.prepared(process.prepare):
            return 1
        if self.stopping.is_set():
            return 0
        if self.look_at_ports(process):
            return 1
        child = spawn.start(process.command, self.home.log(process.name))
        self.running[process.name] = child
        self.note(process, "starting", pid=child.pid)
        if not process.once:
            await self.until_ready(process, child)
        code = await ended(child)
        # What a killed one leaves in its session would hold its port; detached work has its own.
        await asyncio.to_thread(proctree.kill_session, child.pid)
        if process.once and code == 0:
            self.note(process, "done", exit_code=0)
            self.ready[process.name].set()
        return code

    def look_at_ports(self, process: Process) -> bool:
        """Say whether another program has a port of `process`, which does not run now.

        Raises PortStolen where others can still be chosen: nobody knows these yet.
        """
        taken = [port for host, port in process.ports if not is_free(port, host)]
        if not taken:
            return False
        self.state.message = (
            f"port {taken[0]}, which {process.name} was to listen on, is taken by another program"
        )
        print(self.state.message, flush=True)
        if process.required and not self.ready[process.name].is_set():
            self.note(process, "failed")
            raise PortStolen(self.state.message)
        return True

    async def prepared(self, action: Callable[[], None]) -> bool:
        """Do what must come before a start; say whether it succeeded."""
        try:
            await asyncio.to_thread(action)
        except (ServiceFailed, OSError, psycopg.Error, SubprocessError) as failure:
            self.state.message = str(failure)
            print(failure, flush=True)
            return False
        return True

    async def until_ready(self, process: Process, child: Popen[bytes]) -> None:
        """Return when `process` answers or has ended."""
        deadline = time.monotonic() + process.timeout
        while child.poll() is None and not self.stopping.is_set():
            if process.is_ready is None or await asyncio.to_thread(process.is_ready, child.pid):
                self.note(process, "ready", pid=child.pid)
                self.ready[process.name].set()
                return
            if time.monotonic() > deadline:
                if process.required and not self.ready[process.name].is_set():
                    self.give_up(process, f"did not answer within {process.timeout:.0f} s")
                child.kill()
            await asyncio.sleep(POLL)

    def give_up(self, process: Process, why: str) -> None:
        """End the start: nothing works without this process."""
        self.note(process, "failed")
        detail = f" ({self.state.message})" if self.state.message else ""
        log = self.home.log(process.name)
        raise StartFailed(f"{process.name} {why}{detail}; see {log}\n{_tail(log)}".rstrip())

    def note(
        self,
        process: Process,
        condition: Condition,
        *,
        pid: int | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Put down what became of a process."""
        state = self.state.processes[process.name]
        state.condition, state.pid, state.since = condition, pid, time.time()
        state.exit_code = exit_code
        write_state(self.home, self.state)
        ending = "" if exit_code is None else f" (exit code {exit_code})"
        print(f"{time.strftime('%F %T')} {process.name}: {condition}{ending}", flush=True)

    async def stop(self) -> None:
        """Stop everything, the last started first; runs of jobs may write a checkpoint."""
        for order in sorted({each.order for each in self.processes}, reverse=True):
            level = [each for each in self.processes if each.order == order]
            await asyncio.gather(*(self.end(each) for each in level))
            if order == WORKERS:
                await self.end_detached()
        await asyncio.to_thread(proctree.kill_below, os.getpid())

    async def end(self, process: Process) -> None:
        """Stop one process, with force when it takes longer than the grace time."""
        child = self.running.get(process.name)
        if child is not None and child.poll() is None:
            self.note(process, "stopping", pid=child.pid)
            child.send_signal(process.command.stop_signal)
            deadline = time.monotonic() + STOP_GRACE
            while child.poll() is None:
                if time.monotonic() > deadline:
                    child.kill()
                await asyncio.sleep(POLL / 2)
        if self.state.processes[process.name].condition != "failed":
            self.note(process, "stopped", exit_code=child.returncode if child else None)

    async def end_detached(self) -> None:
        """Have those who hold leases end: their trainers write a checkpoint first."""
        deadline = time.monotonic() + self.detached_grace
        holders = self.lease_holders()
        proctree.send(holders, signal.SIGTERM)
        while self.lease_holders() and time.monotonic() < deadline:
            self.reap()
            await asyncio.sleep(POLL)

    def lease_holders(self) -> list[proctree.Stat]:
        """Return the detached processes (`worker.supervisor`) that see a run through."""
        return [each for each in proctree.descendants(os.getpid()) if each.name == LEASE_HOLDER]

    def reap(self) -> None:
        """Collect adopted children that have ended."""
        proctree.reap_strangers({child.pid for child in self.running.values()})

    async def tidy(self) -> None:
        """Collect what was adopted and has ended; keep the logs from growing for ever."""
        while True:
            self.reap()
            for each in self.processes:
                _rotate(self.home.log(each.name))
            await asyncio.sleep(TIDY)


def _tail(log: Path, lines: int = 5) -> str:
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _rotate(log: Path) -> None:
    """Move a long log's content aside; its writer appends and goes on at the new end."""
    if log.exists() and log.stat().st_size > LOG_LIMIT:
        log.with_suffix(".log.1").write_bytes(log.read_bytes())
        os.truncate(log, 0)


async def supervise(supervisor: Supervisor) -> int:
    """Run until SIGTERM or SIGINT; 1 when the processes could not be started."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.ask)
    return await supervisor.run()


def run_alone(home: Home, what: str, run: Callable[[StackState], int]) -> int:
    """Run a supervisor on a data folder as `what`, unless someone else works on it.

    Returns HELD when someone does, and 1 when it cannot start; why is in the log, and in the state
    when the folder is ours.
    """
    spawn.die_with_parent(signal.SIGTERM)  # the guard is gone: stop in order
    spawn.adopt_orphans()
    home.lay()
    identity, guard = proctree.identity(os.getpid()), proctree.identity(os.getppid())
    state = StackState(identity=identity, guard=guard, url="")
    try:
        with home.claimed(what):
            try:
                return run(state)
            except (ServiceFailed, OSError) as failure:
                state.phase, state.message = "failed", f"cannot start: {failure}"
                write_state(home, state)
                raise
    except (Unusable, ServiceFailed, OSError) as failure:
        print(f"cannot start: {failure}", file=sys.stderr, flush=True)
        return HELD if isinstance(failure, AlreadyRunning) else 1


def run_stack(home: Home, options: Mapping[str, Any], state: StackState) -> int:
    """Run the embedded stack, on other ports when some are taken while it starts.

    Raises PortTaken when the port that was asked for is not free.
    """
    for left in reversed(range(PORT_TRIES)):
        ports = choose_ports(home, PORTS, options["host"], options.get("port"))
        stack = Stack(home, ports, state.identity, options["host"], options["auth"])
        state = StackState(
            identity=state.identity, guard=state.guard, url=stack.url, auth=stack.auth
        )
        supervisor = Supervisor(home, stack.processes(), state)
        code = asyncio.run(supervise(supervisor))
        if supervisor.asked or not supervisor.port_taken or not left:
            break
        print("some ports were taken meanwhile: choosing them anew", flush=True)
    return code


def main() -> int:
    """Run the embedded stack that the options describe."""
    options = json.loads(sys.argv[1])
    home = Home(Path(options["home"]))
    return run_alone(home, "polar up", lambda state: run_stack(home, options, state))


if __name__ == "__main__":
    sys.exit(main())
