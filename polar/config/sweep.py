"""Sweeps: overrides with several values, expanded by Hydra's own grammar."""

from collections.abc import Iterator, Sequence
from itertools import islice, product

from polar.config.compose import Composed, Request, compose_one, read_request
from polar.config.errors import wrong
from polar.config.overrides import Override
from polar.config.places import Places

MOST = 1000
"""Combinations; services take fewer."""


def compose_sweep(arguments: Sequence[str], places: Places) -> list[Composed]:
    """Compose one spec for each combination of the overrides' values, the last moving fastest.

    Raises ConfigError, also where nothing is swept: then there is nothing to compare.
    """
    request = read_request(arguments, places)
    if not any(override.is_sweep for override in request.overrides):
        raise wrong("--multirun needs an override with several values: training.seed=1,2")
    combinations = [*islice(_combinations(request), MOST + 1)]
    if len(combinations) > MOST:
        raise wrong(f"more than {MOST} combinations: give fewer values")
    return [compose_one(request, lines) for lines in combinations]


def _combinations(request: Request) -> Iterator[list[str]]:
    ways = [[*islice(_lines(override), MOST + 1)] for override in request.overrides]
    return (list(lines) for lines in product(*ways))


def _lines(override: Override) -> Iterator[str]:
    return override.lines() if override.is_sweep else iter([override.line()])
