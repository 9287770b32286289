"""The official client, pointed at the API under test."""

import json

import openai

from tests.app.server import Api

ROW = (
    json.dumps(
        {
            "messages": [
                {"role": "user", "content": "Where is my order?"},
                {"role": "assistant", "content": "It is on its way.", "weight": 1},
            ]
        }
    )
    + "\n"
)


def client_of(api: Api, key: str | None = None) -> openai.OpenAI:
    """Return a client as users make it; its own repetitions are left as they are."""
    return openai.OpenAI(
        base_url=f"{api.url}/v1",
        api_key=key or api.key,
        organization="org-of-nobody",
        project="project-of-nobody",
    )


def upload(client: openai.OpenAI, content: str = ROW) -> str:
    """Upload rows; returns the file's id."""
    file = client.files.create(file=("rows.jsonl", content.encode()), purpose="fine-tune")
    return file.id
