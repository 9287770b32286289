"""`/api/train/instances` over HTTP: a device of a host is held for the project's next job."""

import secrets
from collections.abc import Iterator

import pytest

from tests.app.server import Api
from tests.services import wait_until

ABSENT = "hold_" + "0" * 26


@pytest.fixture
def offer(api: Api) -> Iterator[str]:
    """A host with a device, while the test lasts."""
    worker_id = f"box-{secrets.token_hex(4)}"
    api.write(
        "INSERT INTO workers (id, project_id, kind, hostname, pid)"
        " VALUES (:id, 'prj_default', 'host', :id, 1)",
        id=worker_id,
    )
    api.write(
        "INSERT INTO devices (worker_id, index, project_id, kind, name, memory_gb)"
        " VALUES (:id, 0, 'prj_default', 'cuda', 'NVIDIA A100-SXM4-80GB', 80)",
        id=worker_id,
    )
    yield f"local:{worker_id}:0"
    api.write("DELETE FROM workers WHERE id = :id", id=worker_id)
    form = {"model_name_or_path": "org/model", "train_data": "org/data"}
    wait_until(lambda: "no_worker" in api.client.post("/api/train/start", json=form).text)


def test_the_page_s_call_holds_a_device_once(api: Api, offer: str) -> None:
    token = f"hf_{secrets.token_hex(12)}"
    asked = {"offer_id": offer, "offer_info": {"gpu_name": "A100"}, "hf_hub_token": token}
    asked |= {"template_name": "research", "auto_destroy": False}
    made = api.client.post("/api/train/instances", json=asked)
    assert made.status_code == 200, made.text
    told = made.json()
    assert (told["success"], told["status"], told["polar_status"]) == (True, "running", "held")
    assert "is held for the next job of the project until" in told["message"]
    assert {w["code"] for w in told["warnings"]} == {"xgen_template_name", "xgen_auto_destroy"}
    assert token not in made.text + api.log.read_text()
    kept = {item["name"] for item in api.client.get("/secrets").json()["items"]}
    assert told["hf_hub_token"] in kept
    again = api.client.post("/api/train/instances", json=asked).json()
    assert again["instance_id"] == told["instance_id"]
    assert "held already" in again["message"]

    path = f"/api/train/instances/{told['instance_id']}"
    listed = api.client.get("/api/train/instances").json()["instances"]
    assert listed[0] == api.client.get(path).json()
    offers = api.client.get("/api/train/offers").json()["items"]
    assert [o["state"] for o in offers if o["offer_id"] == offer] == ["held"]
    local = api.client.get("/targets").json()["items"][0]
    [host] = [w for w in local["workers"] if offer == f"local:{w['id']}:0"]
    assert host["devices"][0]["held"] is True
    assert api.client.delete(path).json()["polar_status"] == "given_back"
    assert api.client.get(path).json()["status"] == "completed"


def test_what_cannot_be_had_is_refused_and_its_token_not_kept(api: Api) -> None:
    before = api.client.get("/secrets").json()
    for offer, status, code in (
        (4711, 409, "no_rented_machines"),
        ("local:nobody:0", 404, "offer_not_found"),
    ):
        token = f"hf_{secrets.token_hex(12)}"
        asked = {"offer_id": offer, "hf_hub_token": token, "template_name": ""}
        answer = api.client.post("/api/train/instances", json=asked)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert "GET /api/train/offers" in answer.json()["message"]
        assert token not in api.log.read_text()
    assert api.client.get("/secrets").json() == before


def test_a_token_that_is_none_is_refused_with_its_field(api: Api, offer: str) -> None:
    asked = {"offer_id": offer, "hf_hub_token": "hf_1"}
    answer = api.client.post("/api/train/instances", json=asked)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/hf_hub_token"
    assert "hf_1" not in answer.text
    offers = api.client.get("/api/train/offers").json()["items"]
    assert [o["state"] for o in offers if o["offer_id"] == offer] == ["free"]


def test_who_may_hold(api: Api, offer: str) -> None:
    viewer = api.role("viewer")
    assert viewer.get("/api/train/instances").status_code == 200
    assert viewer.get("/api/train/offers").status_code == 200
    assert viewer.post("/api/train/instances", json={"offer_id": offer}).status_code == 403
    assert viewer.delete(f"/api/train/instances/{ABSENT}").status_code == 403
    absent = api.client.get(f"/api/train/instances/{ABSENT}")
    assert (absent.status_code, absent.json()["code"]) == (404, "hold_not_found")
