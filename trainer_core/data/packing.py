"""Packing: several whole samples in one row of `max_length` tokens, first fit."""

from collections.abc import Iterable, Sequence

from trainer_core.data.arrow import ArrowRows


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Bins of sample numbers: each sample goes into the first bin that still has room for it.

    A tree of the largest room per half finds that bin in O(log n). Every length must be at most
    `capacity`.
    """
    size = 1
    while size < max(len(lengths), 1):
        size *= 2
    # room[1] is the root; leaves room[size:] are the bins, all of them empty at first.
    room = [capacity] * (2 * size)
    bins: list[list[int]] = []
    for number, length in enumerate(lengths):
        node = 1
        while node < size:
            node = 2 * node if room[2 * node] >= length else 2 * node + 1
        if node - size == len(bins):
            bins.append([])
        bins[node - size].append(number)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return bins


def packed_row(rows: ArrowRows, numbers: Iterable[int]) -> dict[str, list[int]]:
    """One row of several samples; position ids restart at 0 with each of them.

    A sample's first label is −100 (the encoder sees to it), so the last token of one sample is
    never asked for the first of the next.
    """
    packed: dict[str, list[int]] = {"input_ids": [], "labels": [], "position_ids": []}
    for number in numbers:
        row = rows[number]
        packed["input_ids"] += row["input_ids"]
        packed["labels"] += row["labels"]
        packed["position_ids"] += range(len(row["input_ids"]))
    return packed
