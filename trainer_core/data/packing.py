"""Packing: several samples in one row of `max_length` tokens: whole ones, or a wrapped stream."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from trainer_core.data.arrow import ArrowRows, Values


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


def packed_row(rows: ArrowRows, numbers: Iterable[int]) -> dict[str, Values]:
    """One row of several samples; position ids restart at 0 with each of them.

    A sample's first label is −100 (the encoder sees to it), so the last token of one sample is
    never asked for the first of the next.
    """
    samples = [rows[number] for number in numbers]
    positions = [np.arange(len(sample["input_ids"]), dtype=np.int32) for sample in samples]
    return {
        "input_ids": np.concatenate([sample["input_ids"] for sample in samples]),
        "labels": np.concatenate([sample["labels"] for sample in samples]),
        "position_ids": np.concatenate(positions),
    }


def fitted_rows(
    rows: ArrowRows, chosen: Sequence[int], capacity: int
) -> Iterator[dict[str, Values]]:
    """The chosen samples, the longest first, so that rows are as full as they can be."""
    lengths = rows.lengths()
    ordered = sorted(chosen, key=lambda number: (-lengths[number], number))
    for bin_ in first_fit([lengths[i] for i in ordered], capacity):
        yield packed_row(rows, (ordered[i] for i in bin_))


def wrapped_rows(
    rows: ArrowRows, chosen: Sequence[int], capacity: int
) -> Iterator[dict[str, Values]]:
    """The chosen samples as one stream, cut into rows of `capacity` tokens; the last is shorter.

    Only the first token of a row carries no loss. A last token alone would have nothing to learn.
    """
    waiting = np.empty(0, dtype=np.int32)
    for number in chosen:
        waiting = np.concatenate([waiting, rows[number]["input_ids"]])
        full = len(waiting) // capacity * capacity
        for start in range(0, full, capacity):
            yield _stretch(waiting[start : start + capacity])
        waiting = waiting[full:]
    if len(waiting) > 1:
        yield _stretch(waiting)


def streamed_rows(
    rows: ArrowRows, chosen: Sequence[int], capacity: int
) -> Iterator[dict[str, Values]]:
    """As `wrapped_rows`, but with the labels that the samples have: some of them carry no loss."""
    waiting = {name: np.empty(0, dtype=np.int32) for name in ("input_ids", "labels")}
    for number in chosen:
        row = rows[number]
        waiting = {name: np.concatenate([old, row[name]]) for name, old in waiting.items()}
        full = len(waiting["input_ids"]) // capacity * capacity
        for start in range(0, full, capacity):
            yield _begun({n: values[start : start + capacity] for n, values in waiting.items()})
        waiting = {name: values[full:] for name, values in waiting.items()}
    if len(waiting["input_ids"]) > 1:
        yield _begun(waiting)


def _begun(row: dict[str, Values]) -> dict[str, Values]:
    labels = row["labels"].copy()
    labels[0] = -100  # nothing predicts a row's first token
    return {"input_ids": row["input_ids"], "labels": labels}


def _stretch(ids: Values) -> dict[str, Values]:
    labels = ids.copy()
    labels[0] = -100
    return {"input_ids": ids, "labels": labels}
