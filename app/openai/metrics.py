"""What a job measured, under OpenAI's names: for events, checkpoints and the file of results."""

import csv
import io
from collections.abc import Iterable
from typing import Any

from app.series import service
from app.series.schemas import SeriesQuery

_NAMES = {
    "loss": "train_loss",
    "mean_token_accuracy": "train_mean_token_accuracy",
    "eval_loss": "valid_loss",
    "eval_mean_token_accuracy": "valid_mean_token_accuracy",
}
_COLUMNS = {
    "train_loss": "train_loss",
    "train_accuracy": "train_mean_token_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""Of the file of results → our names here."""
_MOST = 100_000
Steps = dict[int, dict[str, float]]


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """Return metrics under OpenAI's names; what it has no name for keeps ours."""
    points = data.get("points")
    told = {_NAMES.get(name, name): value for name, value in data.items()}
    return told | {"points": [renamed(p) for p in points]} if isinstance(points, list) else told


def steps_of(source: service.Source) -> Steps:
    """Return what was measured at each step, in order.

    Above a hundred thousand steps they are thinned out. Raises NotFound and Unavailable.
    """
    found: Steps = {}
    query = SeriesQuery(names=",".join(_NAMES), max_points=_MOST)
    with service.read_points(source, query) as points:
        for name, step, value, _ in points:
            found.setdefault(step, {})[_NAMES[name]] = value
    return dict(sorted(found.items()))


def newest_at(steps: Steps, step: int) -> dict[str, float]:
    """Return the newest value of each metric that was measured up to a step."""
    newest: dict[str, float] = {}
    for at, values in steps.items():
        if at > step:
            break
        newest |= values
    return newest


def as_csv(steps: Steps) -> bytes:
    """Return the file of results: a line for each step, empty where nothing was measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("step", *_COLUMNS))
    writer.writerows(_lines(steps))
    return text.getvalue().encode()


def _lines(steps: Steps) -> Iterable[list[Any]]:
    for step, values in steps.items():
        yield [step, *(values.get(name, "") for name in _COLUMNS.values())]
