"""Estimates by the first rows: what they say holds the plan of all rows, and no more is read."""

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import PLAIN, VARIANTS, conversations
from tests.trainer_core.small_tasks import Small, documents, opinions
from tests.trainer_core.small_texts import pairs
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.plans import totals
from trainer_core.plans.command import lines
from trainer_core.plans.plan import estimate, plan
from trainer_core.plans.results import Estimate, Interval, Plan
from trainer_core.spec import Launch

pytestmark = pytest.mark.train


def launched(small: Small, name: str, rows: list[dict[str, Any]], **changes: Any) -> Launch:
    task = changes.pop("task", {"type": "sft"})
    return Launch.model_validate(small.launch(name, task, rows, **changes))


def talks(count: int) -> list[dict[str, Any]]:
    """Conversations by chance, whose last answer is said one to three times."""
    rng = random.Random(1)  # noqa: S311 - test data
    pool = conversations(40)
    rows = []
    for _ in range(count):
        messages = list(rng.choice(pool)["messages"])
        answer = messages[-1] | {"content": messages[-1]["content"] * rng.randint(1, 3)}
        rows.append({"messages": [*messages[:-1], answer]})
    return rows


def holds(interval: Interval | None, value: float) -> bool:
    assert interval is not None
    assert interval.low <= interval.likely
    assert interval.high is None or interval.likely <= interval.high
    return interval.low <= value <= (interval.high or float("inf"))


def assert_holds(found: Estimate, exact: Plan) -> None:
    bounds = found.bounds
    assert holds(bounds.train, exact.rows.train), (bounds.train, exact.rows)
    assert holds(bounds.tokens, exact.tokens.total), (bounds.tokens, exact.tokens)
    if exact.steps is not None:
        assert holds(bounds.steps, exact.steps.total), (bounds.steps, exact.steps)
    if exact.tokens.trained_share is not None:
        assert holds(bounds.trained_share, exact.tokens.trained_share)


@pytest.mark.sampled
@pytest.mark.parametrize("name", PLAIN)
def test_a_sample_that_holds_all_rows_says_what_the_plan_says(name: str, small: Small) -> None:
    task, rows, given = VARIANTS[name]
    launch = Launch.model_validate(small.launch(f"all-{name}", task, rows, **given))
    found, exact = estimate(launch, {}, 10_000, samples=2), plan(launch, {}, samples=2)
    assert_holds(found, exact)
    assert (found.tokens, found.memory, found.samples) == (
        exact.tokens,
        exact.memory,
        exact.samples,
    )
    assert [w.code for w in found.warnings] == [w.code for w in exact.warnings]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": {"type": "sft", "packing": True, "max_length": 256}},
        {"data": {"validation": {"split_ratio": 0.2}}},
        {"training": {"max_steps": 7}},
    ],
    ids=["padded", "packed", "held out", "steps given"],
)
def test_bounds_hold_what_all_rows_make(changes: dict[str, Any], small: Small) -> None:
    """100 of 1,500 rows that come by chance; the seed is fixed."""
    launch = launched(small, "many", talks(1500), **changes)
    found, exact = estimate(launch, {}, 100), plan(launch, {})
    assert 90 <= found.bounds.sampled <= 101
    assert_holds(found, exact)
    assert found.bounds.rows.high is not None
    wide = found.bounds.tokens
    assert wide.high is not None
    assert wide.high < 2 * wide.low  # it says something
    if "training" in changes:
        assert found.steps == exact.steps
    said = "\n".join(lines(found))
    assert "by the first" in said


def test_rows_of_a_large_file_are_told_by_pieces_of_it(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "_LOOKED_AT", 1 << 14)
    launch = launched(small, "large", talks(900))
    found = estimate(launch, {}, 50)
    assert found.bounds.rows.low < found.bounds.rows.likely
    assert holds(found.bounds.rows, 900)


def test_where_nothing_tells_how_many_rows_there_are_no_bound_is_made_up(small: Small) -> None:
    launch = launched(small, "packed file", talks(300))
    [source] = launch.spec.data.train
    path = Path(source.path)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    data = launch.spec.data.model_copy(
        update={"train": [source.model_copy(update={"path": str(packed)})]}
    )
    here = launch.model_copy(update={"spec": launch.spec.model_copy(update={"data": data})})
    found = estimate(here, {}, 50)
    assert found.bounds.rows.high is None
    assert found.bounds.rows.low == found.bounds.sampled == 50
    known = here.model_copy(update={"known_rows": {"train/0": 300}})
    assert estimate(known, {}, 50).bounds.rows == Interval(low=300, likely=300, high=300)


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_a_mixture_is_told_by_its_weights(strategy: str, small: Small) -> None:
    """Three of four rows of the first, which ends after 300, the second after 400."""
    launch = launched(small, f"mixed-{strategy}", talks(300))
    other = small.folder / "rows" / "others.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in conversations(400)))
    [one] = launch.spec.data.train
    train = [
        one.model_copy(update={"weight": 3.0}),
        one.model_copy(update={"weight": 1.0, "path": str(other)}),
    ]
    data = launch.spec.data.model_copy(update={"train": train, "stopping_strategy": strategy})
    mixed = launch.model_copy(update={"spec": launch.spec.model_copy(update={"data": data})})
    found, exact = estimate(mixed, {}, 100), plan(mixed, {})
    total = {"first_exhausted": 400, "all_exhausted": 1600}[strategy]
    assert found.bounds.rows.likely == pytest.approx(total)
    # The end of a mixture may come a turn or two before or after its shares say.
    assert found.bounds.train.low - 4 <= exact.rows.train <= (found.bounds.train.high or 0) + 4


def test_samples_and_shares_of_a_source_count(small: Small) -> None:
    launch = launched(small, "half", opinions(200), task={"type": "text_classification"})
    [source] = launch.spec.data.train

    def rows(**changes: Any) -> float:
        data = launch.spec.data.model_copy(update={"train": [source.model_copy(update=changes)]})
        spec = launch.spec.model_copy(update={"data": data})
        return estimate(launch.model_copy(update={"spec": spec}), {}, 20).bounds.rows.likely

    assert rows(num_samples=30) == 30
    assert rows(fraction=0.5, seed=3) == 100
    assert rows() == 200


def test_no_row_is_no_sample(small: Small) -> None:
    with pytest.raises(InvalidSpec, match="0 rows tell nothing") as refused:
        estimate(launched(small, "none", documents(3), task={"type": "clm"}), {}, 0)
    assert refused.value.field == "first"


def broken(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every fiftieth row, none of the first 49, is no conversation."""
    return [row if n % 50 < 49 else {"messages": n} for n, row in enumerate(rows)]


SPLIT = {"data": {"over_length": "split"}}
DROP = {"data": {"on_bad_row": "drop", "max_bad_ratio": 0.5}}
UNEVEN: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "split": ({"type": "clm", "max_length": 24, "packing": "none"}, documents(300), SPLIT),
    "joined": ({"type": "mlm", "max_length": 48}, documents(300), {}),
    "dropped": ({"type": "sft"}, broken(conversations(400)), DROP),
    "last batch": ({"type": "sentence_transformer"}, pairs(203), {}),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_bounds_hold_where_rows_are_not_what_is_trained_on(name: str, small: Small) -> None:
    """40 first rows: of documents that make several rows, of rows of which none is dropped yet,
    and of batches of 16, whose last one is not full."""
    task, rows, changes = UNEVEN[name]
    training = {"per_device_train_batch_size": 16}
    launch = launched(small, name.replace(" ", "-"), rows, task=task, training=training, **changes)
    found, exact = estimate(launch, {}, 40), plan(launch, {})
    assert found.bounds.sampled == 40
    assert_holds(found, exact)
    assert found.disk.prepared == pytest.approx(exact.disk.prepared, rel=0.4)
    if name == "last batch":
        assert found.steps == exact.steps


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A CSV file whose texts go over three lines."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"{row['text']}\n\nand so on", row["label"]] for row in rows)
    return path


def of_path(launch: Launch, path: Path, **changes: Any) -> Launch:
    [source] = launch.spec.data.train
    source = source.model_copy(update={"path": str(path), **changes})
    data = launch.spec.data.model_copy(update={"train": [source]})
    return launch.model_copy(update={"spec": launch.spec.model_copy(update={"data": data})})


def test_rows_of_a_table_are_not_its_lines(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"type": "text_classification"}
    launch = launched(small, "table", opinions(60), task=task)
    here = of_path(launch, table(small.folder / "rows" / "table.csv", opinions(60)))
    assert estimate(here, {}, 20).bounds.rows == Interval(low=60, likely=60, high=60)
    monkeypatch.setattr(totals, "_LOOKED_AT", 1 << 11)
    assert estimate(here, {}, 20).bounds.rows == Interval(low=20, likely=20, high=None)
    assert estimate(here, {}, 90).bounds.rows == Interval(low=60, likely=60, high=60)


def test_files_of_a_folder_are_looked_into_as_one(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Much less is read than there is, however many files it is in; what is no data is not."""
    launch = launched(small, "folder", talks(900))
    lines_ = Path(launch.spec.data.train[0].path).read_text().splitlines(keepends=True)
    folder = small.folder / "rows" / "parts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.jsonl").write_text("".join(lines_[30 * number : 30 * number + 30]))
    (folder / "notes.txt").write_text("no rows")
    monkeypatch.setattr(totals, "_LOOKED_AT", 1 << 15)
    found = estimate(of_path(launch, folder), {}, 50)
    assert found.bounds.rows.low < found.bounds.rows.likely
    assert holds(found.bounds.rows, 900)


def test_no_row_at_all_is_told(small: Small) -> None:
    empty = small.folder / "rows" / "empty.jsonl"
    empty.touch()
    launch = launched(small, "not empty", talks(1))
    with pytest.raises(InvalidData, match="has no rows"):
        estimate(of_path(launch, empty, num_samples=10), {}, 100)


def test_an_estimate_leaves_its_folder_as_it_was(small: Small) -> None:
    launch = launched(small, "left", talks(20))
    mine = Path(launch.paths.work) / "sample" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    estimate(launch, {}, 10)
    assert [*Path(launch.paths.work).rglob("*")] == [mine.parent, mine]
