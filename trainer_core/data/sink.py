"""Laying out token rows: splitting off validation, packing, writing the final files."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from trainer_core.data.arrow import ArrowRows, ArrowWriter
from trainer_core.data.mixture import repeated, weights_of
from trainer_core.data.row_encoder import RowEncoder
from trainer_core.data.staging import Staged
from trainer_core.errors import InvalidData
from trainer_core.spec import SplitRatio, TrainSpec


@dataclass(frozen=True)
class Part:
    """One written file: its rows, its samples and their lengths in tokens.

    `by_source` counts the samples of each source by its number.
    """

    rows: int
    samples: int
    lengths: list[int]
    tokens: int
    trained: int
    hash: str
    by_source: Counter[int]


def hold_out(count: int, ratio: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the training and the validation samples, both in order, at least one each.

    The same count, ratio and seed always give the same split. Raises InvalidData below two rows.
    """
    if count < 2:
        raise InvalidData(
            f"data.validation.split_ratio needs at least 2 usable rows to split, and there is "
            f"{count}: add rows, or leave data.validation out",
            "data.validation.split_ratio",
        )
    held = max(1, min(count - 1, round(count * ratio)))
    validation = sorted(random.Random(seed).sample(range(count), held))  # noqa: S311 - no secret
    taken = set(validation)
    return [i for i in range(count) if i not in taken], validation


def lay_out_all(
    spec: TrainSpec, staged: Mapping[str, Staged], folder: Path, encoder: RowEncoder
) -> tuple[Part, Part | None]:
    """Write `train.arrow` and, where the spec asks for it, `validation.arrow` in `folder`.

    What is held out of a mixture is held out before any row comes again. Raises InvalidData where
    a part has no row left.
    """
    numbers: dict[str, Sequence[int] | None] = dict.fromkeys(staged)
    sources = dict(staged)
    if isinstance(spec.data.validation, SplitRatio):
        count = len(staged["train"].origins)
        ratio = spec.data.validation.split_ratio
        numbers["train"], numbers["validation"] = hold_out(count, ratio, split_seed(spec))
        sources["validation"] = staged["train"]
    if "validation" in sources and spec.evaluation.max_samples is not None:
        chosen = numbers["validation"]
        every = range(len(sources["validation"].origins)) if chosen is None else chosen
        numbers["validation"] = every[: spec.evaluation.max_samples]
    if spec.data.stopping_strategy == "all_exhausted":
        numbers["train"] = _repeated(spec, staged["train"], numbers["train"])
    parts = {
        name: lay_out(source, numbers[name], folder / f"{name}.arrow", encoder)
        for name, source in sources.items()
    }
    for name, part in parts.items():
        if not part.rows:
            raise InvalidData(
                f"no row of data.{name} is left: all of them were dropped; look at "
                "task.max_length, data.over_length and data.on_bad_row",
                f"data.{name}",
            )
    return parts["train"], parts.get("validation")


def _repeated(spec: TrainSpec, staged: Staged, chosen: Sequence[int] | None) -> list[int]:
    """The chosen rows of all sources, mixed until each has come."""
    weights = weights_of(spec) or []
    parts: list[list[int]] = [[] for _ in weights]
    for number in range(len(staged.origins)) if chosen is None else chosen:
        parts[staged.origins[number]].append(number)
    return repeated(parts, weights)


def split_seed(spec: TrainSpec) -> int:
    """The seed that decides which rows are held out."""
    training = spec.training
    return training.seed if training.data_seed is None else training.data_seed


def lay_out(staged: Staged, numbers: Sequence[int] | None, out: Path, encoder: RowEncoder) -> Part:
    """Write the samples `numbers` (None: all) of a staged file to `out`, packed if wished."""
    rows = ArrowRows(staged.path, encoder.staged)
    chosen = range(len(rows)) if numbers is None else numbers
    all_lengths = rows.lengths()
    lengths = [all_lengths[i] for i in chosen]
    with ArrowWriter(out, encoder.final) as writer:
        for row in encoder.arrange(rows, chosen):
            writer.write(row)
    by_source = Counter(staged.origins[i] for i in chosen)
    counts = (writer.tokens, writer.trained)
    return Part(writer.rows, len(lengths), lengths, *counts, writer.hash, by_source)


def histogram(lengths: Iterable[int]) -> dict[str, int]:
    """Samples by length: upper bound (a power of two) → how many."""
    counts: dict[int, int] = {}
    for length in lengths:
        bound = 1 << max(length - 1, 0).bit_length()
        counts[bound] = counts.get(bound, 0) + 1
    return {str(bound): counts[bound] for bound in sorted(counts)}


def percentile(lengths: Sequence[int], share: float) -> int:
    """The smallest length that this share of all lengths does not exceed (nearest rank)."""
    return sorted(lengths)[max(ceil(share * len(lengths)), 1) - 1]
