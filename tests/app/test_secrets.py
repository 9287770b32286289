"""Secrets: write-only, encrypted with a key file of mode 600, revealed to workers alone."""

import json
import os
import stat
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag
from sqlalchemy.orm import Session

from app.errors import NotFound
from app.secrets import cipher, service
from app.settings import Settings
from tests.app.server import Api

VALUE = "hf_ÄÖ-0123456789"
JSON = {"Content-Type": "application/json"}


def test_a_secret_is_never_returned(api: Api) -> None:
    made = api.client.post("/secrets", json={"name": "hub", "value": VALUE})
    assert made.status_code == 201
    again = api.client.put("/secrets/hub", json={"value": VALUE})
    assert (again.status_code, again.json()["created_at"]) == (200, made.json()["created_at"])
    listed = api.client.get("/secrets")
    assert "hub" in [item["name"] for item in listed.json()["items"]]
    assert VALUE not in made.text + again.text + listed.text
    [(ciphertext,)] = api.rows("SELECT ciphertext FROM secrets WHERE name = 'hub'")
    assert VALUE.encode() not in bytes(ciphertext)
    assert api.client.get("/secrets/hub").status_code == 405
    assert api.client.delete("/secrets/hub").status_code == 204
    assert api.client.delete("/secrets/hub").status_code == 404


@pytest.mark.parametrize(
    "value", ["short", "       x", "", None, 12345678, "half a \ud800 character"]
)
def test_what_could_not_be_redacted_is_refused_without_an_echo(api: Api, value: object) -> None:
    body = json.dumps({"value": value})  # a lone surrogate as its escape
    answer = api.client.put("/secrets/bad", content=body, headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/value"
    assert answer.json()["errors"][0].get("value") is None


def test_a_bare_value_is_refused_without_an_echo(api: Api) -> None:
    for call in (api.client.put, api.client.post):
        path = "/secrets/bad" if call == api.client.put else "/secrets"
        answer = call(path, json=VALUE)
        assert answer.status_code == 422
        assert "0123456789" not in answer.text


def test_workers_reveal_by_name(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.client.put("/secrets/a-token", json={"value": VALUE})
    settings = Settings(home=Path(api.environment["POLAR_HOME"]))
    monkeypatch.setattr(service, "get_settings", lambda: settings)
    with Session(api.engine) as session:
        assert service.reveal(session, "prj_default", ["a-token"]) == {"a-token": VALUE}
        assert service.reveal(session, "prj_default", []) == {}
        with pytest.raises(NotFound, match="gone"):
            service.reveal(session, "prj_default", ["a-token", "gone"])
        with pytest.raises(NotFound):
            service.reveal(session, "prj_other", ["a-token"])
    assert stat.S_IMODE(cipher.key_file(settings).stat().st_mode) == 0o600


def test_a_ciphertext_belongs_to_its_place() -> None:
    key = os.urandom(32)
    stored = cipher.encrypt(key, VALUE, "prj_1/a")
    assert cipher.decrypt(key, stored, "prj_1/a") == VALUE
    for wrong_key, context in ((key, "prj_2/a"), (os.urandom(32), "prj_1/a")):
        with pytest.raises(cipher.KeyFileUnusable, match="another key file") as caught:
            cipher.decrypt(wrong_key, stored, context)
        assert isinstance(caught.value.__cause__, InvalidTag)


def test_an_unusable_key_file_says_what_to_do(tmp_path: Path) -> None:
    short = tmp_path / "key"
    short.write_text("abc")
    with pytest.raises(cipher.KeyFileUnusable, match="at least 32"):
        cipher.load_key(short)
    with pytest.raises(cipher.KeyFileUnusable, match="cannot be read"):
        cipher.load_key(tmp_path)  # a folder
