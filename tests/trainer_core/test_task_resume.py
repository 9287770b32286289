"""A8 for every task type: killed at a later step and resumed, the same to the last digit."""

from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, Zygote, signal_at
from tests.trainer_core.small_images import labelled_images
from tests.trainer_core.small_tasks import Small, documents, opinions, preferences, questions
from tests.trainer_core.small_texts import answers, judged, pairs
from trainer_core.publish.manifest import read_manifest

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
VARIANTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "text_classification": (
        {"type": "text_classification", "class_weights": "balanced"},
        opinions(40),
        {"training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "image_classification": (
        {
            "type": "image_classification",
            "class_weights": "balanced",
            "augmentation": {
                "random_resized_crop": 0.5,
                "horizontal_flip": 0.5,
                "color_jitter": 0.2,
            },
        },
        labelled_images(40),
        {"training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "image_classification_lora": (
        {"type": "image_classification"},
        labelled_images(40),
        {"adapter": LORA},
    ),
    "dpo_lora": (
        {"type": "dpo", "loss_type": ["sigmoid", "sft"], "disable_dropout": False},
        preferences(40),
        {"adapter": LORA, "training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "dpo_following_reference": (
        {
            "type": "dpo",
            "sync_ref_model": True,
            "ref_model_sync_steps": 3,
            "ref_model_mixup_alpha": 0.5,
        },
        preferences(30),
        {"training": {"learning_rate": 0.001}},
    ),
    "dpo_precomputed": (
        {"type": "dpo", "reference": "precomputed", "precompute_ref_batch_size": 7},
        preferences(30),
        {"training": {"learning_rate": 0.001}},
    ),
    "clm": (
        {"type": "clm", "max_length": 64, "embedding_learning_rate": 1e-3},
        documents(40),
        {"training": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}},
    ),
    "clm_fitted_lora": (
        {"type": "clm", "max_length": 64, "packing": "bfd"},
        documents(40),
        {"adapter": LORA | {"modules_to_save": ["embed_tokens"]}},
    ),
    "clm_from_scratch": (
        {"type": "clm", "max_length": 64, "from_config": {"attention_dropout": 0.2}},
        documents(40),
        {},
    ),
    "mlm": (
        {"type": "mlm", "max_length": 48, "whole_word_mask": True},
        documents(40),
        {"training": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 3}},
    ),
    "mlm_from_scratch": (
        {
            "type": "mlm",
            "max_length": 48,
            "from_config": {"hidden_size": 24, "num_attention_heads": 2},
            "train_tokenizer": {"vocab_size": 100},
        },
        documents(30),
        {"training": {"per_device_train_batch_size": 2}},
    ),
    "grpo": (
        {
            "type": "grpo",
            "max_length": 64,
            "max_completion_length": 8,
            "num_generations": 4,
            "beta": 0.1,
            "rewards": [{"type": "regex", "pattern": "[aeiou]"}, {"type": "length", "max": 4}],
        },
        questions(14),
        {"training": {"gradient_accumulation_steps": 2}, "evaluation": {"max_samples": 2}},
    ),
    "grpo_lora_iterations": (
        {
            "type": "grpo",
            "max_length": 64,
            "max_completion_length": 8,
            "num_generations": 4,
            "num_iterations": 3,
            "disable_dropout": False,
            "rewards": [{"type": "regex", "pattern": "[aeiou]"}],
        },
        questions(6),
        {"adapter": LORA, "evaluation": {"max_samples": 2}},
    ),
    "sentence_transformer": (
        {
            "type": "sentence_transformer",
            "matryoshka_dims": [32, 16, 8],
            "matryoshka_dims_per_step": 2,
        },
        pairs(40),
        {"training": {"num_train_epochs": 3}},
    ),
    "sentence_transformer_head": (
        {"type": "sentence_transformer", "loss": "softmax", "batch_sampler": "batch_sampler"},
        judged(40),
        {"training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "sentence_transformer_lora": (
        {
            "type": "sentence_transformer",
            "loss": "cached_mnrl",
            "loss_args": {"mini_batch_size": 3},
        },
        pairs(40),
        {"adapter": LORA},
    ),
    "sentence_transformer_grouped": (
        {"type": "sentence_transformer", "adaptive_layer": {}},
        opinions(40),
        {},
    ),
    "kto_lora": (
        {"type": "kto", "disable_dropout": False},
        answers(40),
        {"adapter": LORA, "training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "kto_following_reference": (
        {"type": "kto", "sync_ref_model": True, "ref_model_sync_steps": 3},
        answers(30),
        {"training": {"learning_rate": 0.001}},
    ),
    "text_classification_lora": ({"type": "text_classification"}, opinions(40), {"adapter": LORA}),
}


def _weights(outcome: Outcome) -> list[str]:
    manifest = read_manifest(outcome.work / "model")
    return [f.sha256 for f in manifest.files if f.path.endswith(".safetensors")]


@pytest.mark.parametrize("name", VARIANTS)
def test_a8_kill_and_resume_is_exact(name: str, small: Small, zygote: Zygote) -> None:
    """Dropout is on; checkpoints every 4 steps; the kill comes at two thirds of the steps."""
    task, rows, changes = VARIANTS[name]
    whole = zygote.run(small.launch(f"{name}-whole", task, rows, rows[:6], **changes))
    assert whole.code == 0, whole.log
    # A warm start has imported everything; `…_fast` are names that Transformers gives away.
    assert [module for module in whole.told["late"] if not module.endswith("_fast")] == []
    last = max(whole.losses)
    step = last * 2 // 3
    assert 4 < step < last

    launch = small.launch(f"{name}-killed", task, rows, rows[:6], **changes)
    launch["spec"]["data"] = small.launch(f"{name}-whole", task, rows, rows[:6])["spec"]["data"]
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=step)])
    assert killed.code == -9
    assert killed.losses == {s: loss for s, loss in whole.losses.items() if s <= step}

    saved = (step - 1) // 4 * 4
    launch["attempt_id"] = f"{name}-resumed"
    launch["paths"] |= {
        "work": str(small.folder / f"{name}-resumed"),
        "resume_from": str(killed.work / "checkpoints" / f"step-{saved:08d}"),
    }
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert resumed.of("resumed") == [{"step": saved}]
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > saved}
    assert _weights(resumed) == _weights(whole)
    assert _evaluations(resumed)[-1] == _evaluations(whole)[-1]


def _evaluations(outcome: Outcome) -> list[dict[str, Any]]:
    return [m for m in outcome.of("metrics") if "eval_loss" in m]


def test_every_task_is_here() -> None:
    """`sft` has a file of its own; `evaluation` trains nothing."""
    from trainer_core.task import TASKS

    others = {"sft", "evaluation"}
    assert {task["type"] for task, *_ in VARIANTS.values()} | others == TASKS.keys()
