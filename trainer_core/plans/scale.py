"""From the plan of a sample to one of all rows, with bounds."""

from collections.abc import Callable
from math import sqrt
from typing import Any

from trainer_core.data.report import PreparedReport
from trainer_core.plans.results import Bounds, Estimate, Interval, Plan, Rows, Steps, Tokens
from trainer_core.plans.sample import Sampled
from trainer_core.plans.steps import steps_of
from trainer_core.plans.totals import SURE
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

METHOD = (
    "The first rows of each source, as if they were drawn by chance: means ± 1.96 standard errors"
    " (95 %), lengths by their histogram, rows of large files by how close lines are in 32 pieces."
    " Files that are sorted may lie outside; a value without `high` is what was read."
)
_ENDED = "stream_ended"


def scaled(plan: Plan, spec: TrainSpec, sample: Sampled) -> Estimate:
    """The estimate for all rows of a resolved spec; `plan` is that of the sample."""
    report = sample.data.report
    read = report.rows_in
    total = sample.total or Interval(low=read, likely=read, high=None)
    if total.high is not None and total.high <= read:  # nothing is left to guess
        total = Interval(low=total.likely, likely=total.likely, high=total.likely)
        slack = 0.0
    else:
        slack = 1.0
    lengths, kept = slack * _length_error(report), slack * _kept_error(report)
    packed = (lengths + slack / max(report.train_rows, 1)) if report.packed else 0.0
    per_row = report.train_rows / max(read, 1)
    rows = Estimated(total, per_row, kept + packed)
    tokens = Estimated(total, report.total_tokens / max(read, 1), kept + lengths)
    share = _share(plan.tokens, sample, slack)
    factor = total.likely / max(read, 1)
    steps = _steps(spec, sample, rows) if plan.steps else None
    found = plan.model_dump() | {
        "rows": _rows(plan.rows, factor),
        "tokens": _tokens(plan.tokens, factor),
        "steps": steps[0] if steps else None,
        "warnings": [each for each in plan.warnings if each.code != _ENDED],
        "bounds": Bounds(
            sampled=read,
            rows=total,
            train=rows.interval,
            tokens=tokens.interval,
            trained_share=share,
            steps=steps[1] if steps else None,
            method=METHOD,
        ),
    }
    return Estimate.model_validate(found)


class Estimated:
    """Something that each of all rows has so much of, give or take a share `error` of it."""

    def __init__(self, total: Interval, each: float, error: float) -> None:
        error = min(error, 0.9)
        self.interval = Interval(
            low=total.low * each * (1 - error),
            likely=total.likely * each,
            high=None if total.high is None else total.high * each * (1 + error),
        )


def _length_error(report: PreparedReport) -> float:
    """Of the mean length, as a share of it, where lengths are spread evenly within a bar."""
    bars = [(int(bound), count) for bound, count in report.histogram.items()]
    total = sum(count for _, count in bars)
    mean = sum(0.75 * bound * count for bound, count in bars) / total
    square = sum(((0.75 * bound - mean) ** 2 + bound**2 / 48) * count for bound, count in bars)
    return float(SURE * sqrt(square / total) / (sqrt(total) * mean))


def _kept_error(report: PreparedReport) -> float:
    """Of the share of rows that are kept, as a share of it."""
    read = max(report.rows_in, 1)
    dropped = min(report.rows_dropped / read, 1.0)
    kept = max(1 - dropped, 1 / read)
    return float(SURE * sqrt(dropped * kept / read) / kept)


def _share(tokens: Tokens, sample: Sampled, slack: float) -> Interval | None:
    """Of tokens that are trained: the ratio of two sums over rows, and its standard error."""
    if tokens.trained_share is None:
        return None
    share, square, total = tokens.trained_share, 0.0, 0
    for trained, all_ in _trained_of_rows(sample):
        square += (trained - share * all_) ** 2
        total += all_
    error = slack * SURE * sqrt(square) / max(total, 1)
    return Interval(low=max(share - error, 0.0), likely=share, high=min(share + error, 1.0))


def _trained_of_rows(sample: Sampled) -> list[tuple[int, int]]:
    """Trained and all tokens of each prepared row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table: Any = sample.data.train.data.table
    found = [(0, 0)] * table.num_rows
    for name in table.column_names:
        column = table.column(name)
        if not name.endswith("labels") or not pa.types.is_list(column.type):
            continue
        for number, cells in enumerate(column):
            labels = cells.values
            trained = pc.sum(pc.not_equal(labels, -100)).as_py() or 0
            before = found[number]
            found[number] = (before[0] + trained, before[1] + len(labels))
    return found


def _steps(spec: TrainSpec, sample: Sampled, rows: Estimated) -> tuple[Steps, Interval]:
    """The likely steps, and their bounds: as many micro-batches a row as the sample has."""
    here = max(len(sample.data.train), 1)
    batches = task_of(spec).FACTS.batches(spec, sample.data)

    def at(count: float, rounded: Callable[[float], int]) -> Steps:
        return steps_of(spec, max(rounded(count * batches / here), 1))

    found = rows.interval
    likely = at(found.likely, lambda count: -int(-count // 1))
    low = at(found.low, int).total
    high = None if found.high is None else at(found.high, lambda count: int(count) + 1).total
    if spec.training.max_steps:
        high = likely.total
    return likely, Interval(low=low, likely=likely.total, high=high)


def _rows(rows: Rows, factor: float) -> Rows:
    counts = ("read", "kept", "dropped", "cut", "train", "train_samples")
    return rows.model_copy(update={name: round(getattr(rows, name) * factor) for name in counts})


def _tokens(tokens: Tokens, factor: float) -> Tokens:
    more = {
        "total": round(tokens.total * factor),
        "trained": None if tokens.trained is None else round(tokens.trained * factor),
        "histogram": {k: max(1, round(n * factor)) for k, n in tokens.histogram.items()},
    }
    return tokens.model_copy(update=more)
