"""Sentence embeddings: what rows become, which loss their shape gets, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.small_tasks import write_rows
from trainer_core.capabilities import check
from trainer_core.data.formats import to_sample
from trainer_core.data.rows import BadRow, Texts
from trainer_core.embedding.losses import (
    BINARY,
    CLASS,
    NONE,
    NUMBER,
    NUMBERS,
    Shape,
    default_loss,
    settled_loss,
)
from trainer_core.errors import InvalidData, InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.resolve import resolve
from trainer_core.spec import Launch, TrainSpec

A, P, N, M = "how was it", "it was fine", "it was bad", "it was worse"
SOURCE = {"source": "folder", "path": "texts.jsonl"}


def spec(task: dict[str, Any] | None = None, **blocks: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": {"type": "sentence_transformer"} | (task or {}),
            "model": {"name_or_path": "owner/model"},
            "data": {"train": [SOURCE]},
        }
        | blocks
    )


@pytest.mark.parametrize(
    ("row", "format_", "names", "texts", "label"),
    [
        ({"anchor": A, "positive": P}, "anchor_positive", "ap", (A, P), None),
        ({"negative": N, "positive": P, "anchor": A}, "anchor_positive", "apn", (A, P, N), None),
        (
            {"anchor": A, "positive": P, "negative": [N, M]},
            "anchor_positive",
            "apnn",
            (A, P, N, M),
            None,
        ),
        (
            {"negative_2": M, "anchor": A, "positive": P, "negative_1": N, "id": 7},
            "anchor_positive",
            "apnn",
            (A, P, N, M),
            None,
        ),
        (
            {"anchor": A, "positive": P, "negative": N, "score": [3, 1.5]},
            "anchor_positive",
            "apn",
            (A, P, N),
            [3.0, 1.5],
        ),
        ({"sentence1": A, "sentence2": P, "score": 4}, "sentence_pair", "12", (A, P), [4.0]),
        ({"sentence1": A, "sentence2": P, "score": "0.5"}, "sentence_pair", "12", (A, P), [0.5]),
        ({"sentence1": A, "sentence2": P, "label": 0.5}, "sentence_pair", "12", (A, P), [0.5]),
        ({"sentence1": A, "sentence2": P, "label": 1}, "sentence_pair", "12", (A, P), 1),
        ({"sentence1": A, "sentence2": P, "label": "same"}, "sentence_pair", "12", (A, P), "same"),
        ({"sentence1": A, "sentence2": P, "sentence3": N}, "sentence_pair", "123", (A, P, N), None),
    ],
)
def test_a25_names_say_which_text_is_which(
    row: dict[str, Any], format_: str, names: str, texts: tuple[str, ...], label: Any
) -> None:
    words = {"a": "anchor", "p": "positive", "n": "negative"}
    expected = tuple(words.get(name, f"sentence{name}") for name in names)
    assert to_sample(row, format_, None) == Texts(expected, texts, label)


@pytest.mark.parametrize(
    ("row", "format_", "message"),
    [
        ({"anchor": A}, "anchor_positive", "`positive` is missing"),
        ({"anchor": A, "positive": " "}, "anchor_positive", "`positive` is empty"),
        ({"anchor": A, "positive": P, "negative": P}, "anchor_positive", "nothing to tell apart"),
        ({"anchor": A, "positive": P, "negative": 3}, "anchor_positive", "must be a string"),
        ({"sentence1": A, "sentence2": P, "label": 1, "score": 1}, "sentence_pair", "both"),
        ({"sentence1": A, "sentence2": P, "score": "high"}, "sentence_pair", "finite number"),
        ({"sentence1": A, "sentence2": P, "score": float("nan")}, "sentence_pair", "finite number"),
        ({"sentence1": A, "sentence2": P, "score": []}, "sentence_pair", "finite number"),
        ({"sentence1": A, "sentence2": P, "label": "0.85"}, "sentence_pair", "column `score`"),
        ({"sentence1": A, "sentence2": P, "label": {}}, "sentence_pair", "an object"),
    ],
)
def test_rows_that_cannot_be_used(row: dict[str, Any], format_: str, message: str) -> None:
    with pytest.raises(BadRow) as bad:
        to_sample(row, format_, None)
    assert message in bad.value.message


@pytest.mark.parametrize(
    ("shape", "loss"),
    [
        (Shape(1, CLASS, ("a", "b")), "batch_all_triplet"),
        (Shape(1, NUMBERS, width=8), "mse"),
        (Shape(1, NONE), "contrastive_tension"),
        (Shape(1, NUMBER), None),
        (Shape(2, NONE), "mnrl"),
        (Shape(3, NONE), "mnrl"),
        (Shape(5, NONE), "mnrl"),
        (Shape(2, NUMBER), "cosent"),
        (Shape(2, BINARY, ("0", "1")), "contrastive"),
        (Shape(2, CLASS, ("a", "b")), "softmax"),
        (Shape(2, NUMBERS, width=8), "mse"),
        (Shape(3, NUMBER), "margin_mse"),
        (Shape(4, NUMBERS, width=3), "margin_mse"),
        (Shape(3, CLASS, ("a", "b")), None),
    ],
)
def test_the_shape_of_the_data_chooses_the_loss(shape: Shape, loss: str | None) -> None:
    assert default_loss(shape) == loss
    if loss is not None:
        assert settled_loss(spec(), shape) == loss
        return
    with pytest.raises(InvalidSpec, match=r"which no loss can use|use "):
        settled_loss(spec(), shape)


@pytest.mark.parametrize(
    ("loss", "shape", "message"),
    [
        ("triplet", Shape(2, NONE), "task.loss is 'triplet', but the rows have 2 texts and no"),
        ("cosent", Shape(2, CLASS, ("1", "2")), "belong into the column `score`"),
        ("mnrl", Shape(2, BINARY, ("0", "1")), "use cosent, angle, cosine_similarity, contrastive"),
        ("margin_mse", Shape(4, NUMBER), "needs 1 numbers for a row of 4 texts"),
        ("margin_mse", Shape(4, NUMBERS, width=5), "needs 2 or 3 numbers"),
        ("distill_kl_div", Shape(4, NUMBERS, width=2), "needs 3 numbers"),
    ],
)
def test_a_loss_that_does_not_fit_the_rows(loss: str, shape: Shape, message: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        settled_loss(spec({"loss": loss}), shape)
    assert message in refused.value.message
    assert refused.value.field == "task.loss"


@pytest.mark.parametrize(
    ("loss", "shape", "alone"),
    [
        ("mnrl", Shape(2, NONE), False),
        ("mnrl", Shape(3, NONE), True),  # its negative is with it
        ("cosent", Shape(2, NUMBER), False),
        ("cosine_similarity", Shape(2, NUMBER), True),
    ],
)
def test_a_batch_of_one_row_has_nobody_to_compare_with(
    loss: str, shape: Shape, *, alone: bool
) -> None:
    one = spec({"loss": loss}, training={"per_device_train_batch_size": 1})
    if alone:
        assert settled_loss(one, shape) == loss
        return
    with pytest.raises(InvalidSpec, match="raise it to 2 or more") as refused:
        settled_loss(one, shape)
    assert refused.value.field == "training.per_device_train_batch_size"


GUIDE = {"name_or_path": "owner/guide"}


@pytest.mark.parametrize(
    ("task", "blocks", "pointer", "message"),
    [
        (
            {"loss": "cosent", "loss_args": {"margin": 1.0}},
            {},
            "/task/loss_args/margin",
            "has no effect with loss 'cosent': leave it out",
        ),
        (
            {"loss": "batch_all_triplet", "loss_args": {"distance": "manhattan"}},
            {},
            "/task/loss_args/distance",
            "use 'cosine' or 'euclidean'",
        ),
        ({"loss": "gist"}, {}, "/task/guide", "needs a model that sorts out false negatives"),
        ({"loss": "mnrl", "guide": GUIDE}, {}, "/task/guide", "has no effect with loss 'mnrl'"),
        (
            {"loss": "gist", "guide": GUIDE | {"source": "job"}},
            {},
            "/task/guide/source",
            "use 'hub' or 'folder'",
        ),
        (
            {"loss": "gist", "guide": GUIDE | {"token": {"secret": "hub"}}},
            {},
            "/task/guide/token",
            "a public one",
        ),
        (
            {"loss": "cached_mnrl", "adaptive_layer": {}},
            {},
            "/task/adaptive_layer",
            "cannot be used with loss 'cached_mnrl'",
        ),
        (
            {"loss": "softmax", "matryoshka_dims": [8]},
            {},
            "/task/matryoshka_dims",
            "cannot be used with loss 'softmax'",
        ),
        ({"matryoshka_weights": [1.0]}, {}, "/task/matryoshka_weights", "without matryoshka_dims"),
        ({"matryoshka_dims": [8, 8]}, {}, "/task/matryoshka_dims", "names a length twice"),
        (
            {"matryoshka_dims": [8, 4], "matryoshka_weights": [1.0]},
            {},
            "/task/matryoshka_weights",
            "1 numbers for 2 lengths",
        ),
        (
            {"matryoshka_dims": [8, 4], "matryoshka_dims_per_step": 3},
            {},
            "/task/matryoshka_dims_per_step",
            "draw fewer",
        ),
        ({"learning_rate_mapping": {"(": 1.0}}, {}, "/task/learning_rate_mapping", "no pattern"),
        (
            {"loss": "mnrl"},
            {"training": {"gradient_accumulation_steps": 2}},
            "/training/gradient_accumulation_steps",
            "accumulated batches are not one large batch: set it to 1",
        ),
        (
            {"loss": "batch_hard_triplet"},
            {"training": {"per_device_train_batch_size": 5}},
            "/training/per_device_train_batch_size",
            "an even number of rows",
        ),
        (
            {},
            {"training": {"neftune_noise_alpha": 5.0}},
            "/training/neftune_noise_alpha",
            "no effect",
        ),
        (
            {},
            {"data": {"train": [SOURCE], "over_length": "truncate_left"}},
            "/data/over_length",
            "use one of error, truncate_right, drop",
        ),
    ],
)
def test_what_does_not_go_together(
    task: dict[str, Any], blocks: dict[str, Any], pointer: str, message: str
) -> None:
    [problem] = check(spec(task, **blocks))
    assert problem.pointer == pointer
    assert message in problem.message


@pytest.mark.parametrize("loss", ["triplet", "cosine_similarity", "softmax", "mse", "margin_mse"])
def test_losses_of_single_rows_may_be_accumulated(loss: str) -> None:
    assert check(spec({"loss": loss}, training={"gradient_accumulation_steps": 4})) == []


@pytest.mark.parametrize("hardware", [Hardware(), Hardware(gpus=1, gpu_memory_gb=24)])
def test_a_step_is_one_batch_unless_the_spec_says_else(hardware: Hardware) -> None:
    """In-batch negatives are the rows of a batch: 16 at once, not 4 times 4."""
    training = resolve(spec(), hardware, 100_000_000).spec.training
    assert training.gradient_accumulation_steps == 1
    assert training.per_device_train_batch_size == 16
    given = spec(training={"gradient_accumulation_steps": 4})
    assert resolve(given, hardware, 100_000_000).spec.training.per_device_train_batch_size == 4


# ---- prepared rows ----


def _prepare(folder: Path, rows: list[dict[str, Any]], task: dict[str, Any], **data: Any) -> Any:
    from tests.trainer_core.small_tasks import make_tiny_bert
    from trainer_core.data.prepared import open_prepared
    from trainer_core.prepare import prepare

    path = write_rows(folder / "rows.jsonl", rows)
    model = {"source": "folder", "name_or_path": str(make_tiny_bert(folder / "bert"))}
    train = {"source": "folder", "path": str(path)}
    document = spec(task, model=model, data={"train": [train]} | data).model_dump(mode="json")
    paths = {"work": str(folder / "work")}
    launch = {"attempt_id": "a", "job_id": "j", "job_name": "n", "spec": document, "paths": paths}
    prepare(Launch.model_validate(launch), folder / "prepared")
    return open_prepared(folder / "prepared")


@pytest.mark.train
def test_each_text_has_a_column_and_flags_are_what_they_say(tmp_path: Path) -> None:
    """`true` is 1, also where it comes first; special tokens stay where texts are cut."""
    rows = [
        {"sentence1": A, "sentence2": P + " and fine" * 9, "label": True},
        {"sentence1": A, "sentence2": N, "label": False},
    ]
    task = {"max_length": 6, "prompts": {"sentence1": "shop "}}
    found = _prepare(tmp_path, rows, task, over_length="truncate_right")
    assert found.columns == ["text_0", "text_1", "label"]
    assert found.train["label"][:] == [1, 0]
    assert found.report.facts == {
        "texts": 2,
        "columns": ["sentence1", "sentence2"],
        "label": "binary",
        "labels": ["false", "true"],
    }
    assert [len(row["text_1"]) for row in found.train] == [6, 6]
    assert {(row["text_1"][0], row["text_1"][-1]) for row in found.train} == {(2, 3)}
    assert found.report.example["text"].startswith("[CLS] shop how")


@pytest.mark.train
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"sentence1": A, "sentence2": P}, "no label, but rows before it have"),
        ({"sentence1": A, "sentence2": P, "sentence3": N, "label": "x"}, "all rows must be alike"),
        ({"sentence1": A, "sentence2": P, "score": 1.0}, "a number, but rows before it have"),
    ],
)
def test_rows_must_be_alike(tmp_path: Path, odd: dict[str, Any], message: str) -> None:
    rows = [{"sentence1": A, "sentence2": P, "label": "same"}, odd]
    with pytest.raises(InvalidData) as refused:
        _prepare(tmp_path, rows, {})
    assert message in refused.value.message
    assert "line 2" in refused.value.message


@pytest.mark.train
def test_a15_rows_that_are_no_good_are_in_the_ledger(tmp_path: Path) -> None:
    rows = [{"anchor": A, "positive": f"{P} {i}"} for i in range(20)]
    rows[3]["positive"] = ""
    found = _prepare(tmp_path, rows, {}, on_bad_row="drop", max_bad_ratio=0.1)
    assert (found.report.rows_kept, found.report.rows_dropped) == (19, 1)
    [entry] = [json.loads(line) for line in (tmp_path / "prepared/ledger.jsonl").open()]
    assert entry["message"] == "`positive` is empty"


@pytest.mark.train
def test_a_loss_that_does_not_fit_is_refused_before_any_device_is_taken(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"task\.loss is 'triplet'"):
        _prepare(tmp_path, [{"anchor": A, "positive": P}], {"loss": "triplet"})
