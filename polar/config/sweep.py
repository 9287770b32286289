"""Sweeps: overrides with several values, expanded by Hydra's own grammar."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from polar.config.compose import Composed, Request, compose_one, read_request
from polar.config.errors import wrong
from polar.config.overrides import Override
from polar.config.places import Places


@dataclass(frozen=True)
class Sweep:
    """Specs that differ in what was swept: `runs` has one for each combination, the last override
    moving fastest; `grid` the values by dotted path, None where whole options are swept."""

    runs: list[Composed]
    labels: list[dict[str, Any]]
    grid: dict[str, list[Any]] | None


def compose_sweep(arguments: Sequence[str], places: Places) -> Sweep:
    """Compose one spec for each combination of the overrides' values.

    Raises ConfigError, also where nothing is swept: then there is nothing to compare.
    """
    request = read_request(arguments, places)
    swept = [override for override in request.overrides if override.is_sweep]
    if not swept:
        raise wrong("--multirun needs an override with several values: training.seed=1,2")
    values = {each.key: list(each.parsed.sweep_iterator()) for each in swept}
    combinations = list(_combinations(request))
    runs = [compose_one(request, lines) for lines in combinations]
    labels = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    plain = not any(override.is_group for override in swept)
    return Sweep(runs, labels, values if plain else None)


def _combinations(request: Request) -> Iterator[list[str]]:
    ways = (_lines(override) for override in request.overrides)
    return (list(lines) for lines in product(*ways))


def _lines(override: Override) -> list[str]:
    return list(override.lines()) if override.is_sweep else [override.line()]
