"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

from app.jobs.examples import SUBMIT

PLAN: dict[str, Any] = SUBMIT
PREVIEW: dict[str, Any] = {
    "three": {
        "summary": "The first three conversations",
        "value": {"spec": SUBMIT["least"]["value"], "samples": 3},
    }
}
