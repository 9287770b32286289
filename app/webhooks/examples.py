"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

NEW: dict[str, Any] = {
    "ends": {
        "summary": "Told of jobs that end",
        "value": {
            "url": "https://hooks.example.com/polar",
            "events": ["job.succeeded", "job.failed"],
            "description": "the team's channel",
        },
    },
    "least": {"summary": "Everything", "value": {"url": "https://hooks.example.com/polar"}},
}
PATCH: dict[str, Any] = {"off": {"summary": "Switched off", "value": {"active": False}}}
