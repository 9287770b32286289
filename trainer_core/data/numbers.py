"""Numbers of rows, as a training holds them: in 32 bits."""

import math

_LARGEST = 3.4028234663852886e38
SMALL_ENOUGH = "a finite number below 3.4e38"


def held(given: object) -> float:
    """The number; NaN for what is none, or is too large to be held."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        return math.nan
    return float(given) if abs(given) <= _LARGEST else math.nan
