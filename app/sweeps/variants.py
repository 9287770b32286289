"""From a spec and what is varied in it to the specs of the runs."""

import copy
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.errors import FieldProblem, InvalidPayload
from app.jobs.service import merge_patch
from app.settings import get_settings
from app.sweeps.schemas import NewSweep

Json = dict[str, Any]
MOST_BYTES = 32 * 2**20  # of the specs of all runs together: they are made, kept and shown at once


@dataclass(frozen=True)
class Variant:
    """A run to be: its number from 1, what is different in it, its whole spec, and its place.

    `axes`: of a grid, field → number of its value.
    """

    number: int
    overrides: Json
    spec: Json
    axes: dict[str, int] | None = None

    def problem(self, wrong: FieldProblem) -> FieldProblem:
        """Return what is wrong with a field of the run's spec as a problem of the sweep's body."""
        pointer = self._pointer(wrong.pointer)
        message = f"run {self.number}{self._said()}: {wrong.message}"
        return FieldProblem(pointer=pointer, message=message, value=wrong.value)

    def _pointer(self, pointer: str) -> str:
        if self.axes is None:
            return f"/runs/{self.number - 1}{pointer}"
        field = pointer.strip("/").replace("/", ".")
        for axis, place in self.axes.items():
            if field == axis or field.startswith(f"{axis}."):
                return f"/grid/{axis}/{place}{pointer[len(axis) + 1 :]}"
        return f"/spec{pointer}"

    def _said(self) -> str:
        if self.axes is None:
            return ""
        return (
            f" ({', '.join(f'{name} = {value!r}'[:80] for name, value in self.overrides.items())})"
        )


def variants(new: NewSweep, base: Json) -> list[Variant]:
    """Return the runs in their order, their specs not validated; raises InvalidPayload."""
    _check_number(new)
    each = _of_grid(new.grid, base) if new.grid is not None else _of_runs(new.runs or [], base)
    return _small_enough(each)


def _small_enough(each: Iterator[Variant]) -> list[Variant]:
    """Make the runs; raises InvalidPayload before they are too much together."""
    made = []
    size = 0
    for variant in each:
        size += len(json.dumps(variant.spec))
        if size > MOST_BYTES:
            message = (
                f"the specs of the first {variant.number} runs have {size:,} bytes together, and "
                f"those of a sweep {MOST_BYTES:,} at most: make them smaller, or vary less"
            )
            raise InvalidPayload([FieldProblem(pointer="/spec", message=message)])
        made.append(variant)
    return made


def _check_number(new: NewSweep) -> None:
    most = get_settings().sweep_runs
    grid = new.grid or {}
    count = len(new.runs) if new.runs is not None else math.prod(map(len, grid.values()))
    if count > most:
        message = (
            f"these are {count} runs, and a sweep has {most} at most (POLAR_SWEEP_RUNS): "
            "vary less, or in several sweeps"
        )
        pointer = "/grid" if new.runs is None else "/runs"
        raise InvalidPayload([FieldProblem(pointer=pointer, message=message, value=str(count))])


def _of_runs(runs: list[Json], base: Json) -> Iterator[Variant]:
    for number, overrides in enumerate(runs, 1):
        yield Variant(number, overrides, merge_patch(base, overrides))


def _of_grid(grid: dict[str, list[Any]], base: Json) -> Iterator[Variant]:
    _check_apart(list(grid))
    places = itertools.product(*(range(len(values)) for values in grid.values()))
    for number, chosen in enumerate(places, 1):
        axes = dict(zip(grid, chosen, strict=True))
        overrides = {name: grid[name][place] for name, place in axes.items()}
        spec = copy.deepcopy(base)
        for name, value in overrides.items():
            _put(spec, name, value)
        yield Variant(number, overrides, spec, axes)


def _check_apart(axes: list[str]) -> None:
    for one, other in itertools.permutations(axes, 2):
        if other.startswith(f"{one}."):
            message = f"it lies within {one}, which is varied as a whole: vary one of them"
            raise InvalidPayload([FieldProblem(pointer=f"/grid/{other}", message=message)])


def _put(spec: Json, axis: str, value: Any) -> None:
    """Put a value in a field's place; None takes the field out."""
    place: Any = spec
    *way, last = axis.split(".")
    for name in way:
        place = _within(place, name, axis)
    if not isinstance(place, dict | list):
        message = f"the spec has no place {axis}: {way[-1]} holds no fields"
        raise InvalidPayload([FieldProblem(pointer=f"/grid/{axis}", message=message)])
    if isinstance(place, list):
        _within(place, last, axis)
        place[int(last)] = value
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value


def _within(place: Any, name: str, axis: str) -> Any:
    if isinstance(place, dict):
        inner = place.get(name)
        if inner is None:
            inner = place[name] = {}
        if isinstance(inner, dict | list):
            return inner
    elif isinstance(place, list) and name.isdigit() and int(name) < len(place):
        return place[int(name)]
    message = f"the spec has no place {axis}: {name} is not there, or holds no fields"
    raise InvalidPayload([FieldProblem(pointer=f"/grid/{axis}", message=message)])
