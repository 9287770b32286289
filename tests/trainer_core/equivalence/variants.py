"""Runs of every task type, small enough to be repeated: the table that the suite goes through.

Dropout is on; what compares runs whose random numbers differ takes them from `calmed`.
"""

import random
from typing import Any

from tests.trainer_core.runs import Outcome
from tests.trainer_core.small_images import labelled_images, visual_questions
from tests.trainer_core.small_tasks import documents, opinions, preferences, questions
from tests.trainer_core.small_texts import answers, judged, pairs
from trainer_core.task import TASKS


def conversations(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """One to three questions with friendly answers, so that rows are of very different length."""
    rng = random.Random(seed)  # noqa: S311 - test data
    return [
        {"messages": [m for row in preferences(rng.randint(1, 3), n) for m in _turn(row)]}
        for n in range(count)
    ]


def _turn(row: dict[str, Any]) -> list[dict[str, str]]:
    return [*row["prompt"], *row["chosen"]]


LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
Variant = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]
"""Task block, rows, and further changes of the spec, block by block."""

VARIANTS: dict[str, Variant] = {
    "sft": (
        {"type": "sft", "loss_on": "assistant"},
        conversations(40),
        {"training": {"gradient_accumulation_steps": 2}},
    ),
    "sft_packed_lora_kl": (
        {"type": "sft", "packing": True, "max_length": 128, "kl_beta": 0.1},
        conversations(60),
        {"adapter": LORA, "training": {"per_device_train_batch_size": 2}},
    ),
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
    "multimodal": (
        {"type": "multimodal", "freeze_vision_tower": False, "freeze_projector": False},
        visual_questions(40, pairs=True),
        {"training": {"gradient_accumulation_steps": 2, "num_train_epochs": 3}},
    ),
    "multimodal_lora": (
        {"type": "multimodal", "freeze_projector": False},
        visual_questions(40),
        {"adapter": LORA},
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


PLAIN = [*{block["type"]: name for name, (block, *_) in reversed(VARIANTS.items())}.values()]
"""The first variant of each task type."""
TRAINED = {task for task, module in TASKS.items() if module.FACTS.trains}
"""The task types that the suite is about: an evaluation changes nothing."""


def calmed(name: str) -> Variant:
    """A variant that draws no random number: what its spec says of dropout is switched off."""
    task, rows, changes = VARIANTS[name]
    return _calm(task), rows, _calm(changes)


def _calm(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    quiet = {"disable_dropout": True}
    return {
        key: quiet.get(key, 0.0) if "dropout" in key else _calm(each) for key, each in value.items()
    }


def evaluations(outcome: Outcome) -> list[dict[str, Any]]:
    """What each evaluation of a run measured."""
    return [m for m in outcome.of("metrics") if "eval_loss" in m]
