"""Pauses and drains over HTTP: who may, what is answered, and clients that do not wait for it."""

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.app import resources
from tests.app.server import Api
from tests.services import wait_until

HOST = "/targets/local/workers"


def queued(api: Api) -> str:
    return resources.job(api)["job_id"]


def test_a_waiting_job_is_paused_and_resumed_at_once_and_twice_is_once(api: Api) -> None:
    job_id = queued(api)
    for _ in range(2):
        answer = api.client.post(f"/jobs/{job_id}/pause")
        assert answer.status_code == 202
        assert answer.json()["status"] == "paused"
        assert answer.json()["pause_requested_at"]
    links = answer.json()["links"]
    assert links["resume"] == f"/jobs/{job_id}/resume"
    assert "pause" not in links
    for _ in range(2):
        answer = api.client.post(f"/jobs/{job_id}/resume")
        assert answer.status_code == 202
        assert (answer.json()["status"], answer.json()["phase"]) == ("queued", "preparing")
        assert answer.json()["pause_requested_at"] is None
    events = api.client.get(f"/jobs/{job_id}/events", headers={"Accept": "application/json"})
    told = [e["data"]["status"] for e in events.json()["data"] if e["type"] == "status"]
    assert told == ["queued", "paused", "queued"]


def test_what_is_over_can_neither_be_paused_nor_resumed(api: Api) -> None:
    job_id = resources.finished_job(api)["job_id"]
    for wish in ("pause", "resume"):
        answer = api.client.post(f"/jobs/{job_id}/{wish}")
        assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")
        assert f"nothing to {wish}; it can be retried" in answer.json()["message"]


def test_a_job_that_is_being_cancelled_says_so(api: Api) -> None:
    job_id = queued(api)
    api.write("UPDATE jobs SET status = 'provisioning' WHERE id = :id", id=job_id)
    assert api.client.post(f"/jobs/{job_id}/cancel").json()["status"] == "provisioning"
    for wish in ("pause", "resume"):
        answer = api.client.post(f"/jobs/{job_id}/{wish}")
        assert (answer.status_code, answer.json()["code"]) == (409, "job_cancelling")


def test_viewers_pause_nothing_and_submitters_drain_nothing(api: Api) -> None:
    job_id = queued(api)
    viewer, submitter = api.role("viewer"), api.role("submitter")
    for wish in ("pause", "resume"):
        assert viewer.post(f"/jobs/{job_id}/{wish}").status_code == 403
        assert submitter.post(f"/jobs/{job_id}/{wish}").status_code == 202
    host = f"{HOST}/{resources.host(api)['worker_id']}/drain"
    assert submitter.post(host).status_code == 403
    assert submitter.delete(host).status_code == 403
    operator = api.role("operator")
    assert operator.post(host, json={"now": True}).status_code == 202


def test_another_projects_job_and_host_are_not_there(api: Api) -> None:
    job_id, host = queued(api), resources.host(api)["worker_id"]
    api.write("INSERT INTO projects (id, name) VALUES ('prj_far', 'far') ON CONFLICT DO NOTHING")
    api.write("UPDATE workers SET project_id = 'prj_far' WHERE id = :id", id=host)
    answer = api.client.post(f"{HOST}/{host}/drain")
    assert (answer.status_code, answer.json()["code"]) == (404, "host_not_found")
    assert api.client.delete(f"{HOST}/{host}/drain").status_code == 404
    far = api.role("admin")
    api.write("UPDATE api_keys SET project_id = 'prj_far' WHERE role = 'admin' AND name = 'admin'")
    assert far.post(f"/jobs/{job_id}/pause").status_code == 404


def test_a_drain_is_shown_and_taken_back(api: Api) -> None:
    host = resources.host(api)["worker_id"]
    assert api.client.post(f"{HOST}/{host}/drain").json()["hand_back"] is False
    assert api.client.post(f"{HOST}/{host}/drain", json={"now": True}).json()["hand_back"] is True
    # A gentle drain afterwards takes nothing back: what was told to move moves.
    assert api.client.post(f"{HOST}/{host}/drain").json()["hand_back"] is True
    [local] = [t for t in api.client.get("/targets").json()["items"] if t["name"] == "local"]
    [shown] = [w for w in local["workers"] if w["id"] == host]
    assert (shown["draining"], shown["hand_back"]) == (True, True)
    told = api.client.delete(f"{HOST}/{host}/drain").json()
    assert (told["draining"], told["hand_back"]) == (False, False)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_b12_a_client_that_hangs_up_leaves_a_whole_job_or_none(api: Api, after: int) -> None:
    """It hangs up before its body, within it, or behind it; nobody waits for the answer."""
    name = f"dropped-{after}"
    body = json.dumps({**resources.JOB, "name": name}).encode()
    place = urlsplit(api.url)
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {api.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.create_connection((str(place.hostname), place.port or 80), timeout=10) as client:
        client.sendall(head + body[: len(body) * after // 2])
    if after == 2:
        wait_until(lambda: api.rows("SELECT id FROM jobs WHERE name = :n", n=name), timeout=10)
    # Whatever there is is whole: its first event, its preparation, and the hint that starts it.
    whole = api.rows(
        """SELECT j.last_seq, (SELECT count(*) FROM job_events e WHERE e.job_id = j.id),
            (SELECT count(*) FROM preparations p WHERE p.job_id = j.id),
            (SELECT count(*) FROM outbox o WHERE o.args ->> 0 = j.id)
        FROM jobs j WHERE name = :n""",
        n=name,
    )
    assert whole == ([(1, 1, 1, 1)] if after == 2 else [])
