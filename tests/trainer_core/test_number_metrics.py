"""Counted metrics against the libraries' own, on rows and on any drawing of them."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer_core.evaluation.metrics import METRICS
from trainer_core.measures import LabelScores, area_under_curve

np = pytest.importorskip("numpy", reason="it comes with the training stack")
pytestmark = pytest.mark.train
ROWS, DRAWINGS = 30, 40


def _labels(count: int) -> dict[str, Any]:
    """So many labels of which the last is never right and the one before it never predicted."""
    draw = np.random.default_rng(count)
    truth = draw.integers(0, count, ROWS)
    said = np.where(draw.random(ROWS) < 0.6, truth, draw.integers(0, count, ROWS))
    if count > 2:
        truth[truth == count - 1] = 0
        said[said == count - 2] = 1 if count > 3 else 0
    return {"label": truth, "predicted": said}


def _several(count: int) -> dict[str, Any]:
    """Rows of labels that may hold together; the last one of many never does."""
    draw = np.random.default_rng(count)
    truth = draw.integers(0, 2, (ROWS, count))
    said = np.where(draw.random((ROWS, count)) < 0.7, truth, 1 - truth)
    if count > 2:
        truth[:, -1] = said[:, -1] = 0
    return {"label": truth, "predicted": said}


def _numbers(step: float) -> dict[str, Any]:
    """Two columns that go together; rounded to `step`, so that some are equal."""
    draw = np.random.default_rng(3)
    left = draw.normal(size=ROWS)
    right = left + draw.normal(size=ROWS)
    rounded = [np.round(column / step) * step for column in (left, right)]
    columns = dict(zip(("number", "said"), rounded, strict=True))
    return columns | {"cosine": columns["number"], "likeness": columns["said"]}


def _scores(step: float) -> dict[str, Any]:
    columns = _numbers(step)
    return {"label": (columns["number"] > 0).astype(int), "score": columns["said"]}


def _f1(average: str) -> Callable[[Any, Any], float]:
    from sklearn.metrics import f1_score

    return lambda truth, said: f1_score(truth, said, average=average, zero_division=0.0)


def _area(truth: Any, scores: Any) -> float | None:
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(truth, scores) if len(np.unique(truth)) == 2 else None


def _correlation(name: str) -> Callable[[Any, Any], float | None]:
    from scipy import stats

    def of(left: Any, right: Any) -> float | None:
        if np.ptp(left) == 0 or np.ptp(right) == 0:
            return None
        return float(getattr(stats, name)(left, right).statistic)

    return of


def _libraries() -> dict[str, Callable[[Any, Any], float | None]]:
    from sklearn.metrics import accuracy_score, mean_absolute_error, mean_squared_error

    return {
        "accuracy": accuracy_score,
        "f1_macro": _f1("macro"),
        "f1_micro": _f1("micro"),
        "auc": _area,
        "mse": mean_squared_error,
        "mae": mean_absolute_error,
        "pearson": _correlation("pearsonr"),
        "pearson_cosine": _correlation("pearsonr"),
        "spearman_cosine": _correlation("spearmanr"),
    }


CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    **{f"{n} labels": (("accuracy", "f1_macro", "f1_micro"), _labels(n)) for n in (1, 2, 3, 6)},
    **{f"of {n} labels": (("accuracy", "f1_macro", "f1_micro"), _several(n)) for n in (2, 5)},
    "scores": (("auc",), _scores(1e-9)),
    "equal scores": (("auc",), _scores(0.5)),
    "numbers": (("mse", "mae", "pearson"), _numbers(1e-9)),
    "cosines": (("pearson_cosine", "spearman_cosine"), _numbers(1e-9)),
    "equal cosines": (("pearson_cosine", "spearman_cosine"), _numbers(0.5)),
}


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["auc", "mse", "mae", "pearson", "spearman_cosine"])
def test_what_is_no_number_has_no_measure(name: str, odd: float) -> None:
    """Sorted last, a NaN would be the best score; no drawing of rows gives a value either."""
    metric = METRICS[name]
    truth, said = metric.needs
    labels = [0.0, 0.0, 1.0, 1.0]
    statistics = metric.statistics({truth: labels, said: [0.1, 0.2, 0.3, odd]})
    assert metric.value(statistics) is None
    assert metric.value(statistics[[0, 1, 2]]) is None
    assert area_under_curve([(odd, True), (0.1, False)]) is None


@pytest.mark.parametrize("said", [[[0], [0], [0], [0]], [[1], [0], [0], [0]], [[1], [1], [0], [0]]])
def test_one_label_that_may_hold_is_counted_as_in_evaluations(said: list[list[int]]) -> None:
    """`label_names` of one name: F1 is that of the label, not the mean with its absence."""
    import torch

    truth = [[1], [0], [0], [0]]
    scores = LabelScores(threshold=0.5)
    scores.add({"labels": torch.tensor(truth)}, torch.tensor(said) * 2.0 - 1.0, 1.0)
    found = scores.results(0.0)
    for name in ("accuracy", "f1_macro", "f1_micro"):
        metric = METRICS[name]
        columns = {"label": np.array(truth), "predicted": np.array(said)}
        assert metric.value(metric.statistics(columns)) == found[name], name


def _chosen() -> Iterator[Any]:
    """All rows, such drawings as a bootstrap takes, and one in which nothing differs."""
    draw = np.random.default_rng(0)
    yield np.arange(ROWS)
    for _ in range(DRAWINGS):
        yield draw.integers(0, ROWS, ROWS)
    yield np.zeros(ROWS, dtype=int)


@pytest.mark.parametrize("case", CASES)
def test_each_drawing_has_the_librarys_value(case: str) -> None:
    """scikit-learn's and SciPy's, to the last digits: sums are made in another order."""
    names, columns = CASES[case]
    libraries = _libraries()
    for name in names:
        metric = METRICS[name]
        statistics = metric.statistics(columns)
        left, right = (np.asarray(columns[each]) for each in metric.needs)
        for rows in _chosen():
            with warnings.catch_warnings(action="ignore"):  # about labels that a drawing lacks
                wanted = libraries[name](left[rows], right[rows])
            value = metric.value(statistics[rows])
            assert (value is None) == (wanted is None)
            assert value is None or value == pytest.approx(wanted, rel=1e-12, abs=1e-14)


def test_several_labels_are_measured_alike() -> None:
    """In each evaluation, in bounded memory, and of rows; one label of five never holds."""
    import torch

    from trainer_core.measures import LabelScores

    columns = _several(5)
    scores = LabelScores(threshold=0.5)
    logits = torch.tensor(columns["predicted"]) * 2.0 - 1
    scores.add({"labels": torch.tensor(columns["label"])}, logits, ROWS)
    found = scores.results(0.0)
    for name in ("accuracy", "f1_macro", "f1_micro"):
        metric = METRICS[name]
        assert found[name] == pytest.approx(metric.value(metric.statistics(columns))), name


def test_large_numbers_have_a_correlation() -> None:
    """Their squares would be infinite."""
    numbers = [1e200, 2e200, 3e200]
    metric = METRICS["pearson"]
    assert metric.value(metric.statistics({"number": numbers, "said": [1.0, 2.0, 3.0]})) == 1.0
