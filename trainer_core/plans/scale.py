"""From the plan of a sample to one of all rows, with bounds."""

from dataclasses import dataclass
from math import ceil, floor, hypot, inf, sqrt
from typing import Any

from trainer_core.errors import InvalidData
from trainer_core.plans.results import Bounds, Estimate, Interval, Plan, Rows, Tokens
from trainer_core.plans.sample import Sampled
from trainer_core.plans.steps import planned_steps
from trainer_core.plans.totals import SURE
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

METHOD = (
    "The first rows of each source, as if they were drawn by chance: means ± 1.96 standard errors"
    " (95 %), rows of large files by how close lines are in 32 pieces. Files that are sorted may"
    " lie outside; a value without `high` is what was read."
)
_ENDED = "stream_ended"
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Scale:
    """What a sample tells of all rows: how many are read, what is trained on, and its tokens.

    `slack` is 0 where the sample holds all rows, so that nothing is left to guess, else 1.
    """

    total: Interval
    rows: Interval
    tokens: Interval
    slack: float

    @property
    def likely_rows(self) -> int:
        """Prepared rows to train on."""
        return max(round(self.rows.likely), 1)


def scale_of(spec: TrainSpec, sample: Sampled) -> Scale:
    """By the sample of a resolved spec."""
    report = sample.data.report
    read = max(report.rows_in, 1)
    total = sample.total or Interval(low=read, likely=read, high=None)
    slack = 0.0 if total.high is not None and total.high <= read else 1.0
    dropped = _drop_error(spec, sample)
    tokens = hypot(SURE * report.tokens_spread / sqrt(read), dropped)
    if report.packed or task_of(spec).FACTS.joins(spec):
        rows, most = tokens + 1 / max(report.train_rows, 1), inf
    else:
        rows = max(SURE * report.samples_spread / sqrt(read), dropped)
        most = inf if spec.data.over_length == "split" else 1 / _kept(sample)
    each, long = report.train_rows / read, report.total_tokens / read
    return Scale(
        total,
        _of_all(total, each, (slack * rows, most)),
        _of_all(total, long, (slack * tokens, inf)),
        slack,
    )


def scaled(plan: Plan, spec: TrainSpec, sample: Sampled, scale: Scale) -> Estimate:
    """The estimate for all rows of a resolved spec; `plan` is that of the sample, with the steps
    and the disk of `scale.likely_rows`."""
    read = sample.data.report.rows_in
    factor = scale.total.likely / max(read, 1)
    bounds = Bounds(
        sampled=read,
        rows=scale.total,
        train=scale.rows,
        tokens=scale.tokens,
        trained_share=_share(plan.tokens, sample, scale.slack),
        steps=_steps(spec, sample, scale) if plan.steps else None,
        method=METHOD,
    )
    found = plan.model_dump() | {
        "rows": _rows(plan.rows, factor),
        "tokens": _tokens(plan.tokens, factor),
        "warnings": [each for each in plan.warnings if each.code != _ENDED],
        "bounds": bounds,
    }
    return Estimate.model_validate(found)


def _of_all(total: Interval, each: float, error: tuple[float, float]) -> Interval:
    """Something that each of all rows has so much of, give or take a share of it, at `most` so
    many times as much: (share, most)."""
    share, most = error
    return Interval(
        low=total.low * each * max(1 - share, 0.1),
        likely=total.likely * each,
        high=None if total.high is None else total.high * each * min(1 + share, most),
    )


def _kept(sample: Sampled) -> float:
    """The share of rows that are not dropped."""
    report = sample.data.report
    read = max(report.rows_in, 1)
    return max(1 - report.rows_dropped / read, 1 / read)


def _drop_error(spec: TrainSpec, sample: Sampled) -> float:
    """Of the share of rows that are kept, as a share of it (Agresti and Coull): also where none of
    the sample is dropped, some of the rest may be, if the spec lets them."""
    if "drop" not in (spec.data.on_bad_row, spec.data.over_length):
        return 0.0
    kept, rows = _kept(sample), sample.data.report.rows_in + 4
    middle = (kept * (rows - 4) + 2) / rows
    return (SURE * sqrt(middle * (1 - middle) / rows) + abs(kept - middle)) / kept


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


def _steps(spec: TrainSpec, sample: Sampled, scale: Scale) -> Interval:
    """Steps of a run on as many rows."""

    def at(rows: int) -> int:
        try:
            return planned_steps(spec, sample.data, max(rows, 1)).total
        except InvalidData:  # too few rows for a step
            return 0

    rows = scale.rows
    low, likely = at(floor(rows.low + _ROUNDING)), at(scale.likely_rows)
    if spec.training.max_steps:
        return Interval(low=likely, likely=likely, high=likely)
    high = None if rows.high is None else at(ceil(rows.high - _ROUNDING))
    return Interval(low=low, likely=likely, high=high)


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
