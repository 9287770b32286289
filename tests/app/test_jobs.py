"""Jobs over HTTP: submit, idempotency, look, list, change, cancel, delete, retry, clone."""

import concurrent.futures
import json

import pytest
from sqlalchemy import text

from app.db import transaction
from tests.app.server import Api

SPEC = {
    "name": "shop",
    "task": {"type": "sft"},
    "model": {"name_or_path": "org/model"},
    "data": {"train": [{"source": "hub", "path": "org/data"}]},
}


def submit(api: Api, **changes: object) -> dict[str, object]:
    answer = api.client.post("/jobs", json={**SPEC, **changes})
    assert answer.status_code == 201, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_submit_writes_everything_at_once(api: Api) -> None:
    answer = api.client.post("/jobs", json=SPEC)
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/jobs/{job['id']}")
    assert (job["status"], job["phase"], job["spec"]) == ("queued", "preparing", SPEC)
    assert job["resolved"]["training"]["optim"] == "adamw_torch"
    events = api.rows("SELECT seq, type, data FROM job_events WHERE job_id = :id", id=job["id"])
    assert events == [(1, "status", {"status": "queued", "phase": "preparing"})]
    assert api.rows("SELECT status FROM preparations WHERE job_id = :id", id=job["id"]) == [
        ("waiting",)
    ]
    hints = api.rows(
        "SELECT queue, handler FROM outbox WHERE args = jsonb_build_array(CAST(:id AS text))",
        id=job["id"],
    )
    assert hints == [("prepare", "prepare")]
    shown = api.client.get(f"/jobs/{job['id']}").json()
    assert {k: shown[k] for k in ("spec", "resolved", "created_at", "status")} == {
        k: job[k] for k in ("spec", "resolved", "created_at", "status")
    }
