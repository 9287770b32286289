"""Samples of sources and their mixture: which rows come, how often, and what is told of it."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.small_tasks import write_rows
from tests.trainer_core.tiny import make_tokenizer
from trainer_core.data.mixture import turns
from trainer_core.data.prepared import Prepared, open_prepared
from trainer_core.errors import InvalidData
from trainer_core.prepare import content_key, prepare
from trainer_core.spec import Launch, Paths, TrainSpec

pytestmark = pytest.mark.train

WORDS = "abcdefghijklmnopqrstuvwxyz"


def named(kind: str, count: int) -> list[dict[str, Any]]:
    """Documents that say which source they are of and which row they are."""
    return [{"text": f"{kind} {WORDS[i // 26]} {WORDS[i % 26]}"} for i in range(count)]


def launch(folder: Path, *sources: dict[str, Any], **blocks: Any) -> Launch:
    """Sources with `rows`, and fields of the source beside them."""
    train = []
    for number, each in enumerate(sources):
        path = write_rows(folder / f"{number}.jsonl", each["rows"])
        fields = {name: value for name, value in each.items() if name != "rows"}
        train.append({"source": "folder", "path": str(path)} | fields)
    document = {
        "task": {"type": "clm", "packing": "none", "max_length": 64},
        "model": {"source": "folder", "name_or_path": str(folder)},
        "data": {"train": train} | blocks.pop("data", {}),
    }
    spec = TrainSpec.model_validate(document | blocks)
    return Launch(attempt_id="a", job_id="j", job_name="n", spec=spec, paths=Paths(work="/no"))


def prepared(folder: Path, given: Launch, name: str = "prepared") -> Prepared:
    prepare(given, folder / name, make_tokenizer())
    return open_prepared(folder / name)


def texts(rows: Any) -> list[str]:
    tokenizer = make_tokenizer()
    return [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in rows["input_ids"]]


def ledger(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "prepared/ledger.jsonl").open()]


@pytest.mark.parametrize("weights", [[3.0, 1.0], [1.0, 1.0], [0.7, 0.3], [1.0, 9.0]])
def test_each_beginning_has_the_shares(weights: list[float]) -> None:
    """Two sources: no count is ever a whole turn away from its share (Sainte-Laguë)."""
    counts = Counter[int]()
    for length, at in enumerate(islice(turns(weights), 1000), 1):
        counts[at] += 1
        for number, weight in enumerate(weights):
            assert abs(counts[number] - length * weight / sum(weights)) < 1


def test_first_exhausted_takes_no_row_twice_and_reads_nothing_behind(tmp_path: Path) -> None:
    """3 : 1 with 10 rows of the second, whose turns are the 3rd, 7th, 11th, …: in the 43rd, behind
    32 of the first, there is no 11th row of it."""
    sources = ({"rows": named("x", 600), "weight": 3}, {"rows": named("y", 10)})
    found = prepared(tmp_path, launch(tmp_path, *sources))
    counts = Counter(text[0] for text in texts(found.train))
    assert counts == {"x": 32, "y": 10}
    assert len(set(texts(found.train))) == 42
    assert texts(found.train)[:4] == ["x a a", "x a b", "y a a", "x a c"]
    taken = {key: (s.prepared, s.trained) for key, s in found.report.sources.items()}
    assert taken == {"train/0": (32, 32), "train/1": (10, 10)}
    assert found.report.rows_in < 600
    [entry] = ledger(tmp_path)
    assert (entry["source"], entry["action"], entry["reason"]) == (
        "data.train[0]",
        "left",
        "mixture",
    )
    assert "32 rows are in the mixture, which ended with data.train[1]" in entry["message"]


def test_all_exhausted_lets_smaller_sources_come_again(tmp_path: Path) -> None:
    """1 : 1 with 30 and 10 rows: every row of the first once, of the second three times or two."""
    sources = ({"rows": named("x", 30), "weight": 1}, {"rows": named("y", 10), "weight": 1})
    data = {"stopping_strategy": "all_exhausted"}
    found = prepared(tmp_path, launch(tmp_path, *sources, data=data))
    counts = Counter(texts(found.train))
    assert {n for text, n in counts.items() if text.startswith("x")} == {1}
    assert sum(n for text, n in counts.items() if text.startswith("y")) == 29
    assert {n for text, n in counts.items() if text.startswith("y")} == {2, 3}
    taken = {key: (s.prepared, s.trained) for key, s in found.report.sources.items()}
    assert taken == {"train/0": (30, 30), "train/1": (10, 29)}
    [entry] = ledger(tmp_path)
    assert (entry["source"], entry["action"]) == ("data.train[1]", "repeated")
    assert entry["message"] == "10 rows come 29 times in the mixture"


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_no_row_that_is_held_out_is_trained_on(tmp_path: Path, strategy: str) -> None:
    sources = ({"rows": named("x", 40), "weight": 1}, {"rows": named("y", 10), "weight": 1})
    data = {"stopping_strategy": strategy, "validation": {"split_ratio": 0.3}}
    found = prepared(tmp_path, launch(tmp_path, *sources, data=data))
    trained, held = set(texts(found.train)), set(texts(found.validation))
    assert held
    assert trained.isdisjoint(held)


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_a_source_without_a_usable_row_is_no_end_of_a_mixture(
    tmp_path: Path, strategy: str
) -> None:
    """Not one row of the other source, silently: each row of this one is longer than 64 tokens."""
    long = [{"text": "word " * 200}] * 20
    sources = ({"rows": named("x", 20), "weight": 1}, {"rows": long, "weight": 1})
    data = {"stopping_strategy": strategy, "over_length": "drop"}
    with pytest.raises(InvalidData, match=r"data\.train\[1\] has no usable row to mix"):
        prepared(tmp_path, launch(tmp_path, *sources, data=data))


def test_rows_that_would_come_too_often(tmp_path: Path) -> None:
    sources = ({"rows": named("x", 300), "weight": 1}, {"rows": named("y", 2), "weight": 1})
    data = {"stopping_strategy": "all_exhausted"}
    with pytest.raises(InvalidData) as wrong:
        prepared(tmp_path, launch(tmp_path, *sources, data=data))
    assert wrong.value.field == "data.train[1].weight"
    assert "each of its 2 rows would come 150 times" in wrong.value.message


def test_a_restart_mixes_the_same_rows(tmp_path: Path) -> None:
    sources = (
        {"rows": named("x", 60), "weight": 2, "fraction": 0.5, "seed": 3},
        {"rows": named("y", 40), "weight": 1},
    )
    given = launch(tmp_path, *sources)
    hashes = {prepared(tmp_path, given, name).data_hash for name in ("one", "two")}
    assert len(hashes) == 1


def test_samples_are_the_first_rows_or_drawn_by_seed(tmp_path: Path) -> None:
    """30 of 100 either way; drawn ones are not the first, and each seed has its own."""
    rows = named("x", 100)
    drawn = {}
    for name, wish in {
        "first": {"num_samples": 30},
        "share": {"fraction": 0.3},
        "seed 1": {"num_samples": 30, "seed": 1},
        "share 1": {"fraction": 0.3, "seed": 1},
        "seed 2": {"num_samples": 30, "seed": 2},
    }.items():
        found = prepared(tmp_path, launch(tmp_path, {"rows": rows} | wish), name)
        drawn[name] = texts(found.train)
        assert len(set(drawn[name])) == 30
    assert drawn["first"] == drawn["share"] == [row["text"] for row in rows[:30]]
    assert drawn["seed 1"] == drawn["share 1"] != drawn["first"]
    assert drawn["seed 1"] != drawn["seed 2"]
    assert drawn["seed 1"] == sorted(drawn["seed 1"])


def test_the_key_knows_what_chooses_rows(tmp_path: Path) -> None:
    rows = {"rows": named("x", 5)}
    wishes: tuple[dict[str, Any], ...] = (
        {},
        {"fraction": 0.5},
        {"num_samples": 2},
        {"num_samples": 2, "seed": 1},
        {"weight": 2},
        {"weight": 3},
    )
    keys = {content_key(launch(tmp_path, rows | wish, rows), tmp_path) for wish in wishes}
    assert len(keys) == len(wishes)
