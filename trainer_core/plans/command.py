"""The command: says a plan for people, or as JSON."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec, TrainerError
from trainer_core.launch import read_secrets
from trainer_core.plans.plan import Emit, estimate, plan
from trainer_core.plans.results import (
    Bounds,
    Disk,
    Estimate,
    Interval,
    Memory,
    Part,
    Plan,
    Sample,
    Steps,
    Tokens,
)
from trainer_core.publish.manifest import write_durably
from trainer_core.spec import Launch
from trainer_core.stop import StopSignal

_BAR = 30
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


PLAN = "plan.json"
"""What a plan of a Launch is written to, beside it."""


@dataclass(frozen=True)
class Wishes:
    """What a plan is to say: `first` rows alone, `samples` shown, memory measured by a `probe`."""

    first: int | None
    samples: int | None
    probe: bool
    as_json: bool


def plan_command(launch: Launch, wishes: Wishes, save: Path | None) -> int:
    """`python -m trainer_core plan`: 0, or raises a TrainerError. `save`: a file for it."""
    with StopSignal() as stop:

        def tell(kind: str, /, **data: Any) -> None:  # noqa: ARG001 - as in `prepare`
            stop.check()

        try:
            found = _found(launch, wishes, tell)
        except TrainerError:
            stop.check()  # as in `prepare_command`
            raise
    if save is not None:
        write_durably(save, found.model_dump_json().encode())
        return 0
    text = found.model_dump_json(indent=2) if wishes.as_json else "\n".join(lines(found))
    sys.stdout.write(f"{text}\n")
    return 0


def _found(launch: Launch, wishes: Wishes, emit: Emit) -> Plan:
    secrets, samples = read_secrets(), wishes.samples
    if wishes.first is None:
        return plan(launch, secrets, samples=samples, probe=wishes.probe, emit=emit)
    if wishes.probe:
        raise InvalidSpec(
            "--probe steps on the longest of all rows, and --first reads a few: leave one out"
        )
    return estimate(launch, secrets, wishes.first, samples=samples, emit=emit)


def lines(found: Plan) -> Iterator[str]:
    """A plan for people; trained tokens stand between ⟦ and ⟧."""
    yield f"plan     {found.task} of {found.model} on {found.device}"
    yield from _steps(found.steps)
    if isinstance(found, Estimate):
        yield from _bounds(found.bounds)
    yield from _rows(found)
    yield from _tokens(found.tokens)
    yield from _memory(found.memory)
    yield from _disk(found.disk)
    yield from (f"warning  {notice.message}" for notice in found.warnings)
    for sample in found.samples:
        yield ""
        yield from _sample(sample)


def _steps(steps: Steps | None) -> Iterator[str]:
    if steps is None:
        yield "steps    none: nothing is trained"
        return
    yield (
        f"steps    {steps.total:,}: {steps.per_epoch:,} an epoch × {steps.epochs:g} epochs; a step"
        f" takes {steps.global_batch} rows ({steps.per_device_batch} × {steps.accumulation}"
        f" accumulated × {_counted(steps.processes, 'process', 'processes')})"
    )


def _bounds(bounds: Bounds) -> Iterator[str]:
    yield f"bounds   by the first {bounds.sampled:,} rows; {_between('rows', bounds.rows)}"
    shown = [_between("prepared", bounds.train), _between("tokens", bounds.tokens)]
    if bounds.steps is not None:
        shown.append(_between("steps", bounds.steps))
    yield f"         {', '.join(shown)}"


def _between(name: str, interval: Interval) -> str:
    if interval.high is None:
        return f"{name} {interval.low:,.0f} or more"
    return f"{name} {interval.low:,.0f} to {interval.high:,.0f}"


def _rows(found: Plan) -> Iterator[str]:
    rows = found.rows
    held = f" holding {rows.train_samples:,} samples" if rows.packed else ""
    full = "" if rows.fill is None else f", {rows.fill:.1%} full"
    yield (
        f"rows     {rows.read:,} read, {rows.kept:,} kept, {rows.dropped:,} dropped,"
        f" {rows.cut:,} cut; {rows.train:,} to train on{held}{full}, {rows.validation:,} to"
        " validate"
    )


def _tokens(tokens: Tokens) -> Iterator[str]:
    learned = ""
    if tokens.trained is not None and tokens.trained_share is not None:
        learned = f", {tokens.trained:,} of them trained ({tokens.trained_share:.1%})"
    middle = "" if tokens.p50 is None else f"half up to {tokens.p50}, 95 % up to {tokens.p95}, "
    yield f"tokens   {tokens.total:,}{learned}; samples: {middle}longest {tokens.max}"
    most = max(tokens.histogram.values(), default=1)
    for bound, count in tokens.histogram.items():
        yield f"         ≤ {int(bound):>7,} {'▇' * max(1, count * _BAR // most)} {count:,}"


def _memory(memory: Memory) -> Iterator[str]:
    names = ("weights", "gradients", "optimizer", "activations", "logits")
    parts = ", ".join(f"{name} {_size(getattr(memory, f'{name}_gb') * 1e9)}" for name in names)
    room = "" if memory.available_gb is None else f" of {memory.available_gb:.1f} GB"
    yield (
        f"memory   about {_size(memory.total_gb * 1e9)}{room} a process for"
        f" {memory.parameters:,} parameters ({parts}), without the libraries' own"
    )
    probe = memory.probe
    if probe is None:
        return
    if probe.peak_gb is None:
        yield f"         not measured: {probe.failed}"
        return
    factor = "" if probe.factor is None else f", {probe.factor:.2f} of what is predicted"
    yield (
        f"         measured {_size(probe.peak_gb * 1e9)}{factor}; the process alone"
        f" {_size(probe.base_gb * 1e9)}"
    )
    yield from (f"         {change}" for change in probe.changed)


def _disk(disk: Disk) -> Iterator[str]:
    best = f", the best weights {_size(disk.best)}" if disk.best else ""
    yield (
        f"disk     {_size(disk.total)}, and {_size(disk.free)} are free: prepared data"
        f" {_size(disk.prepared)}, {_counted(disk.checkpoints, 'checkpoint', 'checkpoints')} of"
        f" {_size(disk.checkpoint)}{best}, the model {_size(disk.model)}"
    )


def _sample(sample: Sample) -> Iterator[str]:
    label = "" if sample.label is None else f": {sample.label}"
    yield f"sample {sample.number}{label}"
    yield from (f"  image: {image}" for image in sample.images)
    for part in sample.parts:
        trained = sum(token.trained for token in part.tokens)
        yield f"  {part.name} ({len(part.tokens)} tokens, {trained} trained)"
        yield from (f"    {line}" for line in marked(part).split("\n"))
    yield from (f"  given {name}: {text}" for name, text in sample.given.items())


def marked(part: Part) -> str:
    """The text of a part, with what is trained between ⟦ and ⟧."""
    runs = groupby(part.tokens, key=lambda token: token.trained)
    texts = ((trained, "".join(token.text for token in run)) for trained, run in runs)
    return "".join(f"⟦{text}⟧" if trained else text for trained, text in texts)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _size(count: float) -> str:
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"
