"""`--multirun`: overrides with several values become a sweep of the service, watched to its end."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape

from polar.commands.composing import or_told, show
from polar.commands.screen import out
from polar.commands.service import Exit, print_line, service
from polar.commands.tables import print_table
from polar.config import Composed, Places, compose_sweep
from polar.sdk.answers import SweepOut

_LOOK_EVERY = 2.0

Multirun = Annotated[
    bool,
    typer.Option(
        "--multirun",
        "-m",
        help="Try each value of `training.seed=1,2`: a sweep of the service, watched to its end.",
    ),
]
MetricOption = Annotated[
    str,
    typer.Option(
        "--metric",
        help="What the best run of a sweep is told by; `max:` before it "
        "where more is better. Default: eval_loss with validation rows, else loss.",
    ),
]


def sweep(words: list[str], places: Places, metric: str, cfg: str | None, *, as_json: bool) -> None:
    """Submit a sweep and watch it; ends the command: 0 when a best run is named."""
    found = or_told(lambda: compose_sweep(words, places), as_json=as_json)
    if cfg is not None:
        show(cfg, [run.document for run in found])
        return
    with service() as client:
        made = client.sweeps.create(_body(found, metric))
        tell: Callable[[SweepOut], None] = print_line if as_json else _say
        if not as_json:
            print(made.id)
        while made.status == "running":
            time.sleep(_LOOK_EVERY)
            before, made = made, client.sweeps.get(made.id)
            if made.counts != before.counts:
                tell(made)
    if as_json:
        print_line(made)
    else:
        _say_end(made)
    raise SystemExit(_code(made))


def _body(found: Sequence[Composed], metric: str) -> dict[str, Any]:
    base = found[0]
    spec = {name: value for name, value in base.document.items() if name != "name"}
    goal, _, name = metric.rpartition(":")
    return {
        "name": base.spec.name or base.spec.task.type.replace("_", "-"),
        "spec": spec,
        "metric": {
            "name": name or ("loss" if base.spec.data.validation is None else "eval_loss"),
            "goal": goal or "min",
        },
        # What was composed, not what was swept: one value may stand in several fields.
        "runs": [difference(spec, run.document) for run in found],
    }


def difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch (RFC 7396) that makes `other` of `base`, but for `name`."""
    patch: dict[str, Any] = {name: None for name in base if name not in other}
    for name, value in other.items():
        before = base.get(name)
        if value == before or name == "name":
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = difference(before, value)
        patch[name] = value
    return patch


def _say(made: SweepOut) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in made.counts.items() if count)
    out.print(f"[dim]{escape(counts)}[/]")


def _say_end(made: SweepOut) -> None:
    best = made.best
    print_table(
        ("run", "job", "status", made.metric.name, "differs in"),
        (
            (
                f"{run.number}{' ★' if best is not None and run.number == best.number else ''}",
                run.job_id,
                run.status,
                "" if run.value is None else f"{run.value:.6g}",
                ", ".join(f"{name}={value}" for name, value in run.fields.items()),
            )
            for run in made.runs
        ),
    )
    if best is None:
        out.print(f"[bold red]no best run[/]: {escape(made.reason or made.status)}")
        return
    model = "" if best.model is None else f", registered as {best.model.name}:{best.model.version}"
    out.print(
        f"[green]✓[/] the best is run {best.number} ({escape(best.job_id)}):"
        f" {escape(made.metric.name)} {best.value:.6g}{escape(model)}"
    )
    if best.model is None and made.reason:
        out.print(f"[yellow]not registered:[/] {escape(made.reason)}")


def _code(made: SweepOut) -> Exit:
    if made.status == "cancelled":
        return Exit.CANCELLED
    return Exit.FAILED if made.best is None else Exit.DONE
