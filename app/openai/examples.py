"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

FILE_ID = "file-01JDXYZ0123456789ABCDEFGHJ"
_ROW = (
    '{"messages": [{"role": "user", "content": "Can I return this?"}, '
    '{"role": "assistant", "content": "Yes, within 14 days."}]}\n'
)
_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

FILE: dict[str, Any] = {"value": {"purpose": "fine-tune", "file": _ROW}}
CREATE: dict[str, Any] = {
    "supervised": {"value": {"model": _MODEL, "training_file": FILE_ID, "suffix": "shop"}},
    "dpo": {
        "value": {
            "model": _MODEL,
            "training_file": FILE_ID,
            "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.1}}},
            "metadata": {"team": "search"},
        }
    },
    "lora": {
        "summary": "With what OpenAI's API has no word for",
        "value": {
            "model": _MODEL,
            "training_file": FILE_ID,
            "method": {
                "type": "supervised",
                "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 8}},
            },
            "polar": {"adapter": {"type": "lora", "r": 16}},
        },
    },
}
