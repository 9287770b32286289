"""One run: loading → training → publishing, told by events, ended by an exit code."""

from collections.abc import Callable, Mapping
from pathlib import Path

from trainer_core.endings import Ending, ending_of, write_exit
from trainer_core.events import EventWriter, RunEvent
from trainer_core.report import Reporter
from trainer_core.session import Session
from trainer_core.spec import Launch
from trainer_core.stop import StopSignal
from trainer_core.words import say

EVENTS = "events.jsonl"


def run_launch(
    launch: Launch,
    secrets: Mapping[str, str],
    listener: Callable[[RunEvent], None] | None = None,
) -> int:
    """Run one attempt in this process and return its exit code; raises nothing.

    Safe in a process forked from one that imported the training stack (`trainer_core.warm`): the
    number of threads and the devices are set here. `listener` sees each event.
    """
    work = Path(launch.paths.work)
    work.mkdir(parents=True, exist_ok=True)
    with StopSignal() as stop:
        writer = EventWriter(work / EVENTS)
        report = Reporter(writer, stop, listener)
        session = Session(launch, secrets, report, stop)
        ending = _attempt(session)
        with stop.held():
            _close(report, writer, ending, session.step)
            write_exit(work, ending)
    return ending.code


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
