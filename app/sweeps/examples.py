"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

from app.jobs.examples import SUBMIT

_SPEC = SUBMIT["least"]["value"]
_METRIC = {"name": "eval_loss", "goal": "min"}
NEW: dict[str, Any] = {
    "grid": {
        "summary": "Every combination of two fields: four runs",
        "value": {
            "name": "shop-rates",
            "spec": {**_SPEC, "adapter": {"type": "lora"}},
            "grid": {"training.learning_rate": [0.0001, 0.0002], "adapter.r": [8, 16]},
            "metric": _METRIC,
            "max_concurrent": 2,
        },
    },
    "runs": {
        "summary": "Runs one by one, none of them registered",
        "value": {
            "name": "shop-methods",
            "spec": _SPEC,
            "runs": [
                {"adapter": {"type": "lora", "r": 16}},
                {"training": {"learning_rate": 0.00002}},
            ],
            "metric": {**_METRIC, "by": "best"},
            "register_best": False,
        },
    },
}
