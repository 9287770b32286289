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
    write_any,
)
from tests.trainer_core.small_texts import answers, triplets
from trainer_core.task import TASKS

pytestmark = pytest.mark.train

ROWS: dict[str, tuple[list[dict[str, Any]], str, float]] = {
    # rows, what is measured of the validation rows, and a value that guessing does not reach
    "text_classification": (opinions(160), "eval_accuracy", 0.9),
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
FURTHER: dict[str, dict[str, Any]] = {
    "mlm": {"line_by_line": True, "mlm_probability": 0.3},
    "multimodal": {"freeze_projector": False},
    "grpo": {
        "rewards": [{"type": "regex", "pattern": "[aeiou]"}],
        "num_generations": 16,
        "max_length": 64,
        "max_completion_length": 4,
    },
}
"""Fields of a task's block."""


@pytest.mark.parametrize("task", ROWS)
def test_a_job_of_each_task(world: World, tmp_path: Path, task: str) -> None:
    """Losses fall, the measure reaches its mark, the folder loads in the library alone."""
    rows, measure, mark = ROWS[task]
    path = write_any(world.data / task, rows)
    source = {"source": "folder", "path": str(path)}
    if path.suffix == ".zip":  # as users without a shared disk bring their images
        uploaded = world.client.upload(path, task.replace("_", "-"))
        assert (uploaded["file_format"], uploaded["rows"]) == ("zip", len(rows))
        source = {"source": "dataset", "path": uploaded["id"]}
    make = _MODELS.get(task)
    model = world.model if make is None else world.model.parent / make.__name__
    if make is not None and not model.exists():
        make(model)
    spec = world.spec(steps=60, task={"type": task} | FURTHER.get(task, {}))
    if task == "image_classification":  # images have no length
        del spec["task"]["max_length"]
    spec["data"] = {
        "train": [source],
        "validation": {"split_ratio": 0.2},
    }
    spec["model"]["name_or_path"] = str(model)
    if task not in ("dpo", "kto"):  # a random base has nothing that an adapter could bring out
        del spec["adapter"]
    batch = 32 if task == "grpo" else 4  # two groups of answers, else rows
    spec["training"] |= {"per_device_train_batch_size": batch, "learning_rate": 0.01}
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
    """`sft` and `evaluation` have files of their own."""
    assert ROWS.keys() | {"sft", "evaluation"} == TASKS.keys()


def _download(world: World, job: str, folder: Path) -> None:
    listed = [a["path"] for a in world.client.artifacts(job) if a["kind"] == "model"]
    root = next(p for p in listed if p.endswith("manifest.json")).removesuffix("manifest.json")
    for path in listed:
        world.client.download(job, path, folder / path.removeprefix(root))


_AUTO = {
    "clm": "AutoModelForCausalLM",
    "grpo": "AutoModelForCausalLM",
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
    assert model.config.id2label == {0: "bad", 1: "good"}
    return model
