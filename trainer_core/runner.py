"""One run: loading → training → publishing, told by events, ended by an exit code."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainer_core.endings import Ending, ending_of, write_exit
from trainer_core.errors import Interrupted
from trainer_core.events import EventWriter, RunEvent
from trainer_core.places import work_folder
from trainer_core.rank_processes import Crew, told
from trainer_core.ranks import Seat
from trainer_core.report import Mute, Reporter
from trainer_core.session import Session
from trainer_core.spec import Launch
from trainer_core.spread import processes_of
from trainer_core.stop import StopSignal
from trainer_core.words import say

EVENTS = "events.jsonl"
_OWN_WORDS = (0, Interrupted.exit_code)
"""Endings that rank 0 reports itself; all others are told by the launcher, who knows every rank."""


def run_launch(
    launch: Launch,
    secrets: Mapping[str, str],
    listener: Callable[[RunEvent], None] | None = None,
    *,
    calm: bool = False,
) -> int:
    """Run one attempt and return its exit code; every ending is told by events and `exit.json`.

    Raises InvalidSpec where `paths.work` cannot be worked in, and an OSError on a full disk.

    In this process, or in as many as the spec and the devices ask for (`trainer_core.spread`). Safe
    in a process forked from one that imported the training stack (`trainer_core.warm`): the
    number of threads and the devices are set here. `listener` sees each event. `calm`: without any
    dropout, for runs that are compared.
    """
    with work_folder(Path(launch.paths.work)):
        count = processes_of(launch.spec, len(launch.devices))
        if count > 1:
            rank = partial(_run_rank, secrets, listener, calm)
            return _run_in_several(launch, Crew(launch, count, rank), listener)
        return _run_alone(launch, secrets, listener, calm)


def _run_alone(
    launch: Launch,
    secrets: Mapping[str, str],
    listener: Callable[[RunEvent], None] | None,
    calm: bool,  # noqa: FBT001 - passed on
) -> int:
    work = Path(launch.paths.work)
    with StopSignal() as stop:
        writer = EventWriter(work / EVENTS)
        report = Reporter(writer, stop, listener)
        session = Session(launch, secrets, report, stop, calm=calm)
        ending = _attempt(session)
        with stop.held():
            _close(report, writer, ending, session.step)
            write_exit(work, ending)
    return ending.code


def _run_in_several(launch: Launch, crew: Crew, listener: Callable[[RunEvent], None] | None) -> int:
    work = Path(launch.paths.work)
    ending, step = crew.run()
    if ending.code not in _OWN_WORDS or ending is not crew.ranks[0].ending:
        writer = EventWriter(work / EVENTS)
        _close(Reporter(writer, StopSignal(), listener), writer, ending, step)
        write_exit(work, ending)
    return ending.code


def _run_rank(
    secrets: Mapping[str, str],
    listener: Callable[[RunEvent], None] | None,
    calm: bool,  # noqa: FBT001 - bound before the rest
    launch: Launch,
    seat: Seat,
) -> Ending:
    """One rank of several; only rank 0 writes events."""
    work = Path(launch.paths.work)
    with StopSignal() as stop:
        writer = EventWriter(work / EVENTS) if seat.number == 0 else None
        report = Mute(stop) if writer is None else Reporter(writer, stop, listener)
        session = Session(launch, secrets, report, stop, seat, calm=calm)
        ending = _attempt(session)
        with stop.held():
            if writer is not None and ending.code in _OWN_WORDS:
                _close(report, writer, ending, session.step)
                write_exit(work, ending)
            seat.tell(told(ending, session.step))
    return ending


def _close(report: Reporter, writer: EventWriter, ending: Ending, step: int) -> None:
    if ending.code:
        say(f"{ending.reason}: {ending.message}")
    try:
        report.emit("result", **ending.event(step))
        writer.close()
    except OSError as error:  # a full disk: the exit code still tells it
        say(f"the last event could not be written: {error}")


def _attempt(session: Session) -> Ending:
    try:
        session.run()
    except Exception as error:  # noqa: BLE001 - the trainer's one: every ending gets its event
        return ending_of(error)
    return Ending.succeeded()
