"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

_SFT = {
    "name": "shop-assistant",
    "labels": {"team": "search"},
    "task": {"type": "sft", "packing": True, "max_length": 512},
    "model": {"source": "hub", "name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
    "data": {
        "train": [{"source": "hub", "path": "org/shop-dialogues", "split": "train"}],
        "validation": {"split_ratio": 0.05},
    },
    "training": {"learning_rate": 2e-4, "num_train_epochs": 3},
    "adapter": {"type": "lora", "r": 16, "lora_alpha": 32},
}
_LEAST = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"},
    "data": {"train": [{"source": "hub", "path": "org/shop-dialogues"}]},
}

SUBMIT: dict[str, Any] = {
    "lora": {"summary": "LoRA fine-tuning on conversations", "value": _SFT},
    "least": {"summary": "Only what is required", "value": _LEAST},
}
PATCH: dict[str, Any] = {
    "priority": {"value": {"priority": 10, "labels": {"team": "search", "urgent": "yes"}}}
}
RETRY: dict[str, Any] = {"from-scratch": {"value": {"from_scratch": True}}}
CLONE: dict[str, Any] = {
    "other-rate": {"value": {"overrides": {"training": {"learning_rate": 1e-4}}}}
}
