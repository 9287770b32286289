"""Each example is run as it stands, but for its model and its data: tiny ones take their places."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import REPOSITORY, Zygote
from tests.trainer_core.small_images import labelled_images, visual_questions
from tests.trainer_core.small_tasks import (
    Small,
    documents,
    make_tiny_bert,
    opinions,
    preferences,
    questions,
    write_any,
)
from tests.trainer_core.small_texts import answers, pairs
from trainer_core.launch import read_launch
from trainer_core.publish.manifest import verify

pytestmark = pytest.mark.train

EXAMPLES = REPOSITORY / "examples"
STEPS = 1  # one of `grpo` writes thousands of tokens


def _numbered(count: int) -> list[dict[str, Any]]:
    """Questions with a number for an answer, as the example's reward compares them."""
    return [row | {"answer": str(n)} for n, row in enumerate(questions(count))]


def _questions_and_answers(count: int) -> list[dict[str, Any]]:
    """Pairs under the names that the example maps to its own."""
    return [{"question": row["anchor"], "answer": row["positive"]} for row in pairs(count)]


ROWS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "shop-handbook": lambda: documents(80),
    "shop-pairs": lambda: preferences(40),
    "shop-judged": lambda: answers(40),
    "shop-questions of grpo": lambda: _numbered(40),
    "shop-questions of sentence_transformer": lambda: _questions_and_answers(160),
    "shop-photos": lambda: labelled_images(60),
    "shop-photo-answers": lambda: visual_questions(40),
    "shop-topics": lambda: opinions(80),
}
"""Rows of the kind that a data set of this name holds, where two tasks share one by task; the
others lie beside the examples."""


def _source(small: Small, task: str, source: dict[str, Any]) -> dict[str, Any]:
    """A source of the example with rows of our own in its place."""
    name = source["path"]
    path = EXAMPLES / f"{name}.jsonl"
    if not path.exists():
        make = ROWS.get(name) or ROWS[f"{name} of {task}"]
        path = write_any(small.folder / f"{task}-{name}", make())
    return source | {"source": "folder", "path": str(path)}


def _model(small: Small, task: str) -> Path:
    """The tiny model for a task, as wide and as long as the example's own must be."""
    if task == "sentence_transformer":
        return make_tiny_bert(small.folder / "wide", hidden_size=384)
    if task == "mlm":
        return make_tiny_bert(small.folder / "long", max_position_embeddings=256)
    known = {"text_classification": small.bert, "image_classification": small.vit}
    return (known | {"multimodal": small.llava}).get(task, small.llama)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_the_example_runs(path: Path, small: Small, zygote: Zygote) -> None:
    """A step of it, its evaluation and its publication, read from its file as a person's is."""
    document = json.loads(path.read_text(encoding="utf-8"))
    task, data = document["task"]["type"], document["data"]
    model = {"source": "folder", "name_or_path": str(_model(small, task))}
    document["model"] = model
    if task == "evaluation":
        document["task"]["baseline"] = model
    else:
        document["training"]["max_steps"] = STEPS
    for part in ("train", "validation"):
        if isinstance(data.get(part), list):
            data[part] = [_source(small, task, source) for source in data[part]]
    ours = small.folder / path.name
    ours.write_text(json.dumps(document), encoding="utf-8")
    launch = read_launch(ours, small.folder / path.stem)
    run = zygote.run(launch.model_dump(mode="json", exclude_unset=True) | {"threads": 1})
    assert run.code == 0, run.log
    if task == "evaluation":
        assert (run.work / "evaluation/report.json").exists()
    else:
        assert run.losses.keys() == {STEPS}
        assert any("eval_loss" in m for m in run.of("metrics"))
        assert verify(run.work / "model").kind == "model"
