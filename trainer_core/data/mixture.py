"""Mixing sources by weight: whose turn it is, and which rows come again.

Nothing here is random: the same weights and rows always give the same mixture.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from trainer_core.errors import InvalidData
from trainer_core.spec import TrainSpec

Item = TypeVar("Item")
_MOST_TIMES = 100
"""How often a row may come: beyond it there is a slip in the weights, and a disk to fill."""


def weights_of(spec: TrainSpec) -> list[float] | None:
    """The weight of each training source; None where they are not mixed."""
    given = [source.weight for source in spec.data.train]
    if all(weight is None for weight in given):
        return None
    return [1.0 if weight is None else weight for weight in given]


def turns(weights: Sequence[float]) -> Iterator[int]:
    """Numbers of sources without end: each beginning holds them in the shares of their weights.

    Sainte-Laguë's method: the next turn is that of the smallest (turns so far + ½) / weight, of
    the first of those that are equal.
    """
    taken = [0.5] * len(weights)
    while True:
        at = min(range(len(weights)), key=lambda i: taken[i] / weights[i])
        taken[at] += 1
        yield at


def interleaved(
    sources: Sequence[Iterator[Item]], weights: Sequence[float]
) -> Iterator[tuple[int, Item]]:
    """Items with the number of their source, until the one whose turn it is has no more.

    Nothing more is asked of the other sources then.
    """
    for at in turns(weights):
        for item in sources[at]:
            yield at, item
            break
        else:
            return


def repeated(parts: Sequence[Sequence[int]], weights: Sequence[float]) -> list[int]:
    """Numbers of rows, until each row of each part has come once; smaller parts begin anew.

    Raises InvalidData for a part without rows, and where rows would come too often.
    """
    _check_times(parts, weights)
    chosen: list[int] = []
    taken = [0] * len(parts)
    waiting = len(parts)
    for at in turns(weights):
        chosen.append(parts[at][taken[at] % len(parts[at])])
        taken[at] += 1
        waiting -= taken[at] == len(parts[at])
        if not waiting:
            break
    return chosen


def nothing_to_mix(field: str) -> InvalidData:
    """Return the error about a source of a mixture that has no usable row."""
    return InvalidData(f"{field} has no usable row to mix: leave the source out", field)


def _check_times(parts: Sequence[Sequence[int]], weights: Sequence[float]) -> None:
    for number, part in enumerate(parts):
        if not part:
            raise nothing_to_mix(f"data.train[{number}]")
    longest = max(len(part) / weight for part, weight in zip(parts, weights, strict=True))
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        times = longest * weight / len(part)
        if times > _MOST_TIMES:
            field = f"data.train[{number}].weight"
            raise InvalidData(
                f"{field} is {weight:g}, so that each of its {len(part)} rows would come "
                f"{times:,.0f} times until every other row has come once; at most {_MOST_TIMES} "
                "are sensible: change the weights, or set data.stopping_strategy to "
                "'first_exhausted'",
                field,
            )
