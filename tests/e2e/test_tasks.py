"""Every task type through the service: submitted, prepared, trained, published, loaded again."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import World
from tests.trainer_core.small_images import (
    labelled_images,
    make_tiny_llava,
    make_tiny_vit,
    visual_questions,
)
from tests.trainer_core.small_tasks import (
    documents,
    make_tiny_bert,
    opinions,
    preferences,
    questions,
    second_opinions,
    talks,
    write_any,
)
from tests.trainer_core.small_texts import answers, triplets
from trainer_core.task import TASKS

pytestmark = pytest.mark.train

ROWS: dict[str, tuple[list[dict[str, Any]], str, float]] = {
    # rows, what is measured of the validation rows, and a value that guessing does not reach
    "sft": (talks(160), "eval_mean_token_accuracy", 0.8),
    "text_classification": (opinions(160), "eval_accuracy", 0.9),
    "pairs": (second_opinions(240), "eval_accuracy", 0.9),
    "several labels": (
        [row | {"label": [row["label"], "text"]} for row in opinions(160)],
        "eval_f1_micro",
        0.9,
    ),
    "numbers": (
        [row | {"label": 1.5 if row["label"] == "good" else -0.5} for row in opinions(160)],
        "eval_pearson",
        0.9,
    ),
    "image_classification": (labelled_images(120), "eval_accuracy", 0.9),
    "multimodal": (visual_questions(120), "eval_mean_token_accuracy", 0.9),
    "clm": (documents(40), "eval_perplexity", -100.0),
    "mlm": ([{"text": row["text"]} for row in opinions(160)], "eval_masked_accuracy", 0.3),
    "dpo": (preferences(60), "eval_rewards/accuracies", 0.9),
    "kto": (answers(80), "eval_rewards/margins", 0.1),
    "sentence_transformer": (triplets(160), "eval_cosine_accuracy", 0.9),
    "grpo": (questions(60), "eval_reward", 0.9),
}
_MODELS = {
    **dict.fromkeys(("text_classification", "mlm", "sentence_transformer"), make_tiny_bert),
    "image_classification": make_tiny_vit,
    "multimodal": make_tiny_llava,
}
"""What a task is trained on, where it is not the stack's own Llama."""
_BATCHES = {"grpo": 32, "pairs": 16, "several labels": 16}
"""Rows of a step, 4 for the others; of `grpo` two groups of answers."""
_CLASSIFICATION = {"type": "text_classification"}
FURTHER: dict[str, dict[str, Any]] = {
    "pairs": _CLASSIFICATION,
    "several labels": _CLASSIFICATION | {"problem_type": "multi_label_classification"},
    "numbers": _CLASSIFICATION | {"problem_type": "regression"},
    "mlm": {"line_by_line": True, "mlm_probability": 0.3},
    "multimodal": {"freeze_projector": False},
    "grpo": {
        "rewards": [{"type": "regex", "pattern": "[aeiou]"}],
        "num_generations": 16,
        "max_length": 64,
        "max_completion_length": 4,
    },
}
"""Fields of a task's block; its type where that is not the name of the case."""


@pytest.mark.parametrize("case", ROWS)
def test_a_job_of_each_task(world: World, tmp_path: Path, case: str) -> None:
    """Losses fall, the measure reaches its mark, the folder loads in the library alone."""
    rows, measure, mark = ROWS[case]
    block = {"type": case} | FURTHER.get(case, {})
    task = block["type"]
    path = write_any(world.data / case, rows)
    source = {"source": "folder", "path": str(path)}
    if path.suffix == ".zip":  # as users without a shared disk bring their images
        uploaded = world.client.upload(path, task.replace("_", "-"))
        assert (uploaded["file_format"], uploaded["rows"]) == ("zip", len(rows))
        source = {"source": "dataset", "path": uploaded["id"]}
    spec = world.spec(steps=60, task=block)
    if task == "image_classification":  # images have no length
        del spec["task"]["max_length"]
    spec["data"] = {
        "train": [source],
        "validation": {"split_ratio": 0.2},
    }
    spec["model"]["name_or_path"] = str(_model(world, task))
    if task not in ("dpo", "kto"):  # a random base has nothing that an adapter could bring out
        del spec["adapter"]
    spec["training"] |= {"per_device_train_batch_size": _BATCHES.get(case, 4)}
    job = str(world.client.submit(spec)["id"])
    world.until(job, "succeeded", timeout=180)
    measured = [e["data"] for e in world.events(job) if measure in e["data"]][-1][measure]
    # Perplexity is better when it is lower: an untrained model guesses among 512 tokens.
    assert (-measured if task == "clm" else measured) >= mark
    losses = world.losses(job)
    assert task == "grpo" or losses[60] < losses[1]  # a group's advantages add up to nothing
    _download(world, job, tmp_path)
    assert _loaded(tmp_path, task)


def test_every_task_is_here() -> None:
    """`evaluation` has a file of its own."""
    types = {FURTHER.get(case, {}).get("type", case) for case in ROWS}
    assert types | {"evaluation"} == TASKS.keys()


def _model(world: World, task: str) -> Path:
    make = _MODELS.get(task)
    model = world.model if make is None else world.model.parent / make.__name__
    if make is not None and not model.exists():
        make(model)
    return model


def _download(world: World, job: str, folder: Path) -> None:
    listed = [a["path"] for a in world.client.artifacts(job) if a["kind"] == "model"]
    root = next(p for p in listed if p.endswith("manifest.json")).removesuffix("manifest.json")
    for path in listed:
        world.client.download(job, path, folder / path.removeprefix(root))


_AUTO = {
    "clm": "AutoModelForCausalLM",
    "grpo": "AutoModelForCausalLM",
    "sft": "AutoModelForCausalLM",
    "mlm": "AutoModelForMaskedLM",
    "multimodal": "AutoModelForImageTextToText",
}


def _loaded(folder: Path, task: str) -> Any:
    import peft
    import sentence_transformers
    import transformers

    if task == "sentence_transformer":
        return sentence_transformers.SentenceTransformer(str(folder)).encode(["a shop"])[0].any()
    if task in ("dpo", "kto"):
        return peft.AutoPeftModelForCausalLM.from_pretrained(folder)
    if task in _AUTO:
        return getattr(transformers, _AUTO[task]).from_pretrained(folder)
    if task == "image_classification":
        pipeline = transformers.pipeline(task.replace("_", "-"), model=str(folder))
        return pipeline.model.config.id2label == {0: "cat", 1: "dog", 2: "고래"}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    several = model.config.problem_type == "multi_label_classification"
    labels = ["bad", "good", *(["text"] if several else [])]
    if model.config.problem_type == "regression":
        labels = ["LABEL_0"]  # Transformers' own name of a number
    assert list(model.config.id2label.values()) == labels
    return model
