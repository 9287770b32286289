"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

PUT: dict[str, Any] = {
    "lora": {
        "summary": "How this team trains adapters",
        "value": {
            "spec": {
                "adapter": {"type": "lora", "r": 16, "lora_alpha": 32},
                "training": {"learning_rate": 0.0002, "num_train_epochs": 3},
            },
            "description": "adapters for small models",
        },
    }
}
