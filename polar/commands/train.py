"""`polar train`: compose a spec and train it here, without any service."""

import errno
import statistics
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from polar.commands.composing import (
    BAD_SPEC,
    AsJson,
    ConfigDir,
    ConfigName,
    Show,
    Words,
    composed,
    say,
    show,
)
from polar.commands.multirun import MetricOption, Multirun, sweep
from polar.commands.screen import fail, out
from polar.config import Composed, Places
from polar.follow import Seen, follow
from polar.local_run import DISK_FULL, INTERRUPTED, Ending, LocalRun, NoRun
from polar.sse import Frame
from trainer_core.spec import TrainSpec

RUNS = Path("runs")
_RUNNING = Frame(None, {"type": "status", "data": {"status": "running"}})


def train(  # noqa: PLR0913 - the options of a command line
    words: Words = None,
    *,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; default: `runs/` and the job's name."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run of this folder, from its newest checkpoint."),
    ] = None,
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    cfg: Show = None,
    multirun: Multirun = False,
    metric: MetricOption = "",
    as_json: AsJson = False,
) -> None:
    """Train here, without any service: from options, a spec's file and overrides.

    Ctrl-C asks for a checkpoint and ends with exit code 75: --resume goes on with the same numbers.
    Exit codes: 0 succeeded, 64 bad spec or data, 70 trainer error, 71 out of memory, 72 diverged,
    73 disk full, 75 interrupted, 76 below `publish.gate`, 128 + n killed by a signal.
    """
    if resume is not None:
        if any((words, out_folder, config_dir, config_name, cfg, multirun, metric)):
            raise fail("--resume goes on with the folder's own spec: leave the rest out", BAD_SPEC)
        _watched(lambda: LocalRun.resume(resume), resume, as_json=as_json)
    places = Places(config_dir, config_name)
    if multirun:
        sweep(words or [], places, metric, cfg, as_json=as_json)
        return
    found = composed(words, places, as_json=as_json)
    if cfg is not None:
        show(cfg, [found.document])
        return
    name = _name(found)
    folder = out_folder or RUNS / name
    _watched(lambda: LocalRun.begin(name, _of_training(found), folder), folder, as_json=as_json)


def _name(found: Composed) -> str:
    return found.spec.name or found.spec.task.type.replace("_", "-")


def _of_training(found: Composed) -> dict[str, Any]:
    """What the trainer knows of a job: nothing of where and in what order jobs run."""
    fields = TrainSpec.model_fields
    return {name: value for name, value in found.document.items() if name in fields}


def _watched(begin: Callable[[], LocalRun], folder: Path, *, as_json: bool) -> None:
    """Run and show; ends the command with the trainer's exit code."""
    try:
        run = begin()
    except NoRun as error:
        raise fail(str(error), BAD_SPEC) from None
    except OSError as error:
        why = f"{error.filename or folder}: {error.strerror or error}"
        code = DISK_FULL if error.errno == errno.ENOSPC else BAD_SPEC
        raise fail(f"{why}: no run can be kept in {folder}", code) from None
    with run.handing_on_signals():
        seen = None if as_json else follow(str(folder), chain([_RUNNING], run.frames()), out)
        if as_json:
            _lines(run)
        ending = run.ending()
    if seen is not None:
        _say_ending(seen, ending, folder)
    raise SystemExit(ending.code)


def _lines(run: LocalRun) -> None:
    for frame in run.frames():
        if frame.type != "end":
            say(frame.body)
    ending = run.ending()
    told = {"status": ending.status, "reason": ending.reason, "message": ending.message}
    say({"type": "end", "exit_code": ending.code, **told, "folder": str(run.folder)})


def _say_ending(seen: Seen, ending: Ending, folder: Path) -> None:
    why = f": {ending.message}" if ending.message else ""
    if ending.code == INTERRUPTED:
        out.print(f"[yellow]interrupted[/]; polar train --resume {escape(str(folder))} goes on")
    elif ending.code:
        out.print(f"[bold red]{escape(ending.reason or ending.status)}[/]{escape(why)}")
        out.print(f"[dim]all that it said: {escape(str(folder / 'output.log'))}[/]")
    else:
        out.print(f"[green]✓[/] succeeded{_fall(seen.losses)}; {escape(str(folder / 'model'))}")
        out.print(f"[dim]try it: polar try {escape(str(folder))}[/]")


def _fall(losses: list[float]) -> str:
    if not losses:
        return ""
    early, late = statistics.fmean(losses[:5]), statistics.fmean(losses[-5:])
    return f", loss {early:.3f} → {late:.3f} in {len(losses)} steps"
