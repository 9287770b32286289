"""`GET /uploads`, and whose clock says that an upload is over."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from polar.stack.ports import free_ports
from tests.app.server import Api
from tests.app.stored import store_of
from tests.app.test_uploads import JSONL, begun, offset_of, send
from tests.drills.clock import can_shift
from tests.services import ROOT, wait_until

HOUR = 3600


@pytest.fixture
def empty(api: Api) -> Iterator[None]:
    api.write("DELETE FROM uploads")
    yield
    for project in ("prj_default", "prj_y"):
        store_of(api).delete_prefix(f"{project}/uploads/")
    api.write("DELETE FROM uploads")


def listed(api: Api, **query: object) -> list[str]:
    answer = api.client.get("/uploads", params={k: str(v) for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    return [str(item["id"]) for item in answer.json()["items"]]


def id_of(where: str) -> str:
    return where.rpartition("/")[2]


@pytest.mark.usefixtures("empty")
def test_what_is_not_finished_is_listed_newest_first(api: Api) -> None:
    half, over, done = begun(api, len(JSONL)), begun(api, 5), begun(api, len(JSONL), name="done")
    assert send(api, half, 0, JSONL[:1000]).status_code == 204
    assert send(api, done, 0, JSONL).status_code == 204
    refused = begun(api, 5)
    assert send(api, refused, 0, b"{no\n\n").status_code == 422
    late = begun(api, 7)
    api.write("UPDATE uploads SET expires_at = now() WHERE id = :u", u=id_of(over))
    page = api.client.get("/uploads").json()
    assert page["next_cursor"] is None
    assert page["items"] == [api.client.get(where).json() for where in (late, half)]
    assert (page["items"][1]["offset"], page["items"][1]["length"]) == (1000, len(JSONL))
    assert listed(api, status="done") == [id_of(done)]
    assert listed(api, status="refused") == [id_of(refused)]
    both = api.client.get("/uploads", params={"status": ["done", "refused"]}).json()["items"]
    assert [item["status"] for item in both] == ["refused", "done"]


@pytest.mark.usefixtures("empty")
def test_the_list_has_pages(api: Api) -> None:
    made = [id_of(begun(api, 5)) for _ in range(5)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.client.get("/uploads", params={"limit": "2", **cursor}).json()
        assert len(page["items"]) <= 2
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == made[::-1]
    for wrong in ({"cursor": "ds_1"}, {"cursor": "upl_'--"}):
        answer = api.client.get("/uploads", params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")
    for wrong in ({"limit": "0"}, {"limit": "201"}, {"status": "lost"}, {"page": "2"}):
        assert api.client.get("/uploads", params=wrong).status_code == 422
    other = api.client.get("/uploads", headers={"Tus-Resumable": "0.2.2"})
    assert other.status_code == 412


@pytest.mark.usefixtures("empty")
def test_the_list_is_the_projects_own_and_not_for_viewers(api: Api) -> None:
    ours, theirs = id_of(begun(api, 5)), id_of(begun(api, 5))
    api.write("INSERT INTO projects (id, name) VALUES ('prj_y', 'y') ON CONFLICT DO NOTHING")
    api.write("UPDATE uploads SET project_id = 'prj_y' WHERE id = :u", u=theirs)
    assert listed(api) == [ours]
    assert listed(api, cursor=theirs) == [ours]
    assert api.role("viewer").get("/uploads").status_code == 403  # nor may they see one


@contextmanager
def elsewhere(api: Api, seconds: int, folder: Path) -> Iterator[Api]:
    """The API on a host whose date is wrong by so many seconds."""
    port = free_ports(1)[0]
    log = folder / "api.log"
    clock = str(ROOT / "tests" / "drills" / "clock.py")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, clock, str(seconds), "app", "serve"],
            cwd=ROOT,
            env={**api.environment, "POLAR_PORT": str(port), "PYTHONPATH": str(ROOT)},
            stdout=output,
            stderr=output,
        )
    other = Api(f"http://127.0.0.1:{port}", api.key, api.environment, log, process)
    try:
        wait_until(lambda: _answers(other), timeout=60)
        yield other
    finally:
        other.client.close()
        process.terminate()
        process.wait(30)


def _answers(api: Api) -> bool:
    assert api.process.poll() is None, api.log.read_text()
    try:
        return httpx.get(f"{api.url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(not can_shift(), reason="the date is shifted in the code of x86-64's libc")
@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("seconds", [2 * HOUR, -2 * HOUR], ids=["ahead", "behind"])
def test_the_databases_clock_says_when_an_upload_is_over(
    api: Api, seconds: int, tmp_path: Path
) -> None:
    with elsewhere(api, seconds, tmp_path) as other:
        open_one, over = begun(other, len(JSONL)), begun(other, 5)
        expires = "UPDATE uploads SET expires_at = now() + :by * interval '1 hour' WHERE id = :u"
        api.write(expires, by=1, u=id_of(open_one))
        api.write(expires, by=-1, u=id_of(over))
        assert offset_of(other, open_one) == 0
        assert listed(other) == [id_of(open_one)]
        gone = other.client.get(over)
        assert (gone.status_code, gone.json()["code"]) == (410, "upload_expired")
        assert send(other, over, 0, b"x").status_code == 410
        _whose_check(api, other)


def _whose_check(api: Api, other: Api) -> None:
    """What someone looks through is left to them, and taken over only when they are gone."""
    where = begun(other, 5)
    api.write(
        "UPDATE uploads SET received = length, status = 'checking', checker = 'someone',"
        " checking_until = now() + interval '1 hour' WHERE id = :u",
        u=id_of(where),
    )
    busy = other.client.delete(where)
    assert (busy.status_code, busy.json()["code"]) == (409, "upload_checking")
    api.write(
        "UPDATE uploads SET checking_until = now() - interval '1 hour' WHERE id = :u",
        u=id_of(where),
    )
    assert other.client.delete(where).status_code == 204
