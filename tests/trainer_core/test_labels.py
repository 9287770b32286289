"""Labels of rows: their map, and what is no label."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.small_tasks import opinions, write_rows
from trainer_core.data.labels import LabelMap, as_number
from trainer_core.data.rows import BadRow


def ids(labels: list[Any], declared: list[str] | None = None) -> list[int]:
    """Final ids of the labels of training rows."""
    found = LabelMap(declared)
    provisional = [found.number(label, may_be_new=True) for label in labels]
    final = found.final_ids()
    return [final[i] for i in provisional]


def test_a23_ids_do_not_depend_on_the_order_of_rows() -> None:
    assert ids(["b", "c", "a", "b"]) == [1, 2, 0, 1]
    assert ids([10, 9, 2]) == ids(["10", "9", "2"]) == [2, 1, 0]
    assert ids([True, False]) == [1, 0]


def test_a23_declared_names_fix_the_ids() -> None:
    names = ["no", "maybe", "yes"]
    assert ids(["yes", "no"], names) == [2, 0]
    assert ids([2, 0], names) == [2, 0]
    # Names that are numbers are names: star 1 of 1 to 3 is the first of them.
    assert ids([1, 3], ["1", "2", "3"]) == [0, 2]


@pytest.mark.parametrize(
    ("label", "declared", "message"),
    [
        ("yess", ["yes", "no"], "is 'yess', which is not in task.label_names"),
        ("yess", ["yes", "no"], "(is 'yes' meant?)"),
        (2, ["yes", "no"], "is 2, but task.label_names has 2 names"),
        (-1, ["yes", "no"], "is -1, but"),
        (None, None, "`label` is null: it must be a name or a whole number"),
        ("  ", None, "`label` is empty"),
        (0.5, None, "set task.problem_type to 'regression'"),
        (["a"], None, "set task.problem_type to 'multi_label_classification'"),
        ({"a": 1}, None, "`label` is an object"),
        ("\ud800", None, "`label` holds half a character"),
    ],
)
def test_what_is_no_label(label: Any, declared: list[str] | None, message: str) -> None:
    with pytest.raises(BadRow) as bad:
        LabelMap(declared).number(label, may_be_new=True)
    assert message in bad.value.message


def test_a23_a_label_of_validation_rows_alone_is_an_error() -> None:
    found = LabelMap(None)
    found.number("a", may_be_new=True)
    with pytest.raises(BadRow, match="is 'b', which no training row has"):
        found.number("b", may_be_new=False)


def several(labels: Any, declared: list[str] | None = None, separator: str | None = None) -> Any:
    found = LabelMap(declared)
    numbers = found.numbers(labels, separator, may_be_new=True)
    names = found.names()
    final = found.final_ids()
    return [names[final[i]] for i in numbers], names


def test_several_labels_in_every_spelling() -> None:
    assert several(["b", "a"]) == (["b", "a"], ["a", "b"])
    assert several("b; a;", separator=";") == (["b", "a"], ["a", "b"])
    assert several('["b", "a"]') == (["b", "a"], ["a", "b"])
    assert several([1, 0], ["x", "y"]) == (["y", "x"], ["x", "y"])
    assert several([False, True], ["x", "y"]) == (["y"], ["x", "y"])
    assert several([0.0, 1.0, 1.0]) == (["1", "2"], ["0", "1", "2"])
    assert several([], ["x"]) == ([], ["x"])


@pytest.mark.parametrize(
    ("labels", "declared", "message"),
    [
        ("a b", None, "say in task.label_separator what stands between them"),
        ([0, 0, 1], ["x", "y"], "names one label twice: for a 0 or 1 per label write booleans"),
        ([True], ["x", "y"], "has 1 flags, but there are 2 labels"),
        (3, None, "is a number: it must be a list of labels"),
        (["a", None], None, "`label` is null"),
    ],
)
def test_what_is_no_list_of_labels(labels: Any, declared: list[str] | None, message: str) -> None:
    with pytest.raises(BadRow) as bad:
        LabelMap(declared).numbers(labels, None, may_be_new=True)
    assert message in bad.value.message


@pytest.mark.parametrize(
    "label", ["", "fast", None, True, "nan", float("inf"), [1.0], 1e39, -(10**400)]
)
def test_what_is_no_number(label: Any) -> None:
    with pytest.raises(BadRow, match="needs a finite number"):
        as_number(label)


def test_rows_of_opinions_are_alike_each_time(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "a.jsonl", opinions(5)).read_text()
    assert first == write_rows(tmp_path / "b.jsonl", opinions(5)).read_text()
