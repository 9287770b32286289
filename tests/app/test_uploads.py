"""Data sets in pieces, by tus 1.0: cut connections, killed processes, races, checks, expiry."""

import concurrent.futures
import hashlib
import json
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from typing import Any

import httpx
import pytest

from app.storage import Store
from app.uploads.receiving import BLOCK
from tests.app.server import Api, running
from tests.app.stored import store_of
from tests.services import ROOT, wait_until
from tests.worker.gate import gate

ROW = json.dumps({"instruction": "환불하려면?", "output": "주문 내역에서."}, ensure_ascii=False)
JSONL = (ROW + "\n").encode() * 50
BIG_ROW = json.dumps({"text": "x" * 65_000}).encode() + b"\n"
BIG = BIG_ROW * 300  # three blocks of 8 MiB
PIECE = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}


@pytest.fixture(scope="module")
def store(api: Api) -> Store:
    return store_of(api)


def metadata(**fields: str) -> str:
    return ",".join(f"{key} {b64encode(value.encode()).decode()}" for key, value in fields.items())


def begin(api: Api, length: int, **fields: str) -> httpx.Response:
    said = {"name": "pieces", "filename": "상점.jsonl", **fields}
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(length)}
    headers["Upload-Metadata"] = metadata(**said)
    return api.client.post("/uploads", headers=headers)


def begun(api: Api, length: int, **fields: str) -> str:
    answer = begin(api, length, **fields)
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def send(api: Api, where: str, offset: int, content: bytes, **headers: str) -> httpx.Response:
    return api.client.patch(
        where, headers={**PIECE, "Upload-Offset": str(offset), **headers}, content=content
    )


def offset_of(api: Api, where: str) -> int:
    answer = api.client.head(where, headers={"Tus-Resumable": "1.0.0"})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    return int(answer.headers["upload-offset"])


def test_pieces_become_the_data_set_that_was_sent(api: Api, store: Store) -> None:
    digest = hashlib.sha256(JSONL).hexdigest()
    where = begun(api, len(JSONL), name="whole", sha256=digest)
    for start in range(0, len(JSONL), 1500):
        assert offset_of(api, where) == start
        answer = send(api, where, start, JSONL[start : start + 1500])
        assert answer.status_code == 204, answer.text
    assert answer.headers["upload-offset"] == str(len(JSONL))
    made = api.client.get(answer.headers["content-location"]).json()
    assert (made["name"], made["version"], made["sha256"]) == ("whole", 1, digest)
    assert (made["rows"], made["file_name"]) == (50, "상점.jsonl")
    key = made["location"].removeprefix(f"s3://{store.bucket}/")
    assert store.get_bytes(key, 10_000) == JSONL
    shown = api.client.get(where).json()
    assert (shown["status"], shown["dataset_id"]) == ("done", made["id"])
    assert list(store.list_objects("prj_default/uploads/")) == []
    assert send(api, where, len(JSONL), b"").status_code == 204  # asking again changes nothing
    assert len(api.client.get("/datasets", params={"name": "whole"}).json()["items"]) == 1


def test_what_is_spoken_is_said(api: Api) -> None:
    for path in ("/uploads", begun(api, 5)):
        answer = api.client.options(path)
        assert answer.status_code == 204
        assert answer.headers["tus-version"] == "1.0.0"
        assert answer.headers["tus-max-size"] == str(20 * 2**30)
        assert "termination" in answer.headers["tus-extension"]
        assert "sha1" in answer.headers["tus-checksum-algorithm"].split(",")
    other = api.client.head(begun(api, 5), headers={"Tus-Resumable": "0.2.2"})
    assert other.status_code == 412
    answer = begin(api, 5)
    assert answer.headers["upload-expires"].endswith("GMT")


@pytest.mark.parametrize(
    ("length", "fields", "status", "code"),
    [
        (20 * 2**30 + 1, {}, 413, "upload_too_large"),
        (0, {}, 400, "empty"),
        (5, {"name": "../up"}, 422, "invalid_payload"),
        (5, {"name": ""}, 422, "invalid_payload"),
        (5, {"filename": "../../etc/passwd"}, 422, "invalid_payload"),
        (5, {"filename": "a\\b.jsonl"}, 422, "invalid_payload"),
        (5, {"sha256": "abc"}, 422, "invalid_payload"),
    ],
)
def test_b33_what_is_said_of_an_upload_is_checked_first(
    api: Api, length: int, fields: dict[str, str], status: int, code: str
) -> None:
    answer = begin(api, length, **fields)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_pieces_that_do_not_fit_are_refused_and_change_nothing(api: Api, store: Store) -> None:
    where = begun(api, 100)
    assert send(api, where, 0, b"a" * 40).status_code == 204
    for offset in (0, 39, 41, 100):
        answer = send(api, where, offset, b"b" * 10)
        assert (answer.status_code, answer.json()["code"]) == (409, "offset_mismatch")
        assert "goes on at Upload-Offset 40" in answer.json()["message"]
    long = send(api, where, 40, b"b" * 61)
    assert (long.status_code, long.json()["code"]) == (413, "upload_too_long")
    plain = api.client.patch(where, headers={"Upload-Offset": "40"}, content=b"b")
    assert plain.status_code == 415
    assert offset_of(api, where) == 40
    assert len(list(store.list_objects(f"prj_default{where}/"))) == 1
    assert api.client.delete(where).status_code == 204
    assert api.client.head(where).status_code == 404
    assert list(store.list_objects(f"prj_default{where}/")) == []


def test_bytes_too_many_leave_the_blocks_before_them_and_say_so(api: Api) -> None:
    where = begun(api, BLOCK + 2**20)
    answer = send(api, where, 0, b"b" * (BLOCK + 2**20 + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "upload_too_long")
    assert "HEAD says how many of them were taken" in answer.json()["message"]
    kept = offset_of(api, where)
    assert BLOCK <= kept < BLOCK + 2**20
    assert send(api, where, kept, b"b" * 10).status_code == 204
    assert api.client.delete(where).status_code == 204


@pytest.mark.parametrize("algorithm", ["sha256", "sha1"])
def test_pieces_with_a_checksum_count_whole_or_not_at_all(
    api: Api, store: Store, algorithm: str
) -> None:
    where = begun(api, len(BIG), name="summed")
    good = f"{algorithm} {b64encode(hashlib.new(algorithm, BIG).digest()).decode()}"
    damaged = send(api, where, 0, BIG[:-1] + b"X", **{"Upload-Checksum": good})
    assert (damaged.status_code, damaged.json()["code"]) == (460, "checksum_mismatch")
    assert offset_of(api, where) == 0
    assert list(store.list_objects(f"prj_default{where}/")) == []
    for wrong in ("md5 eA==", f"{algorithm} not base64!"):
        assert send(api, where, 0, BIG, **{"Upload-Checksum": wrong}).status_code == 400
    answer = send(api, where, 0, BIG, **{"Upload-Checksum": good})
    assert answer.status_code == 204, answer.text
    made = api.client.get(answer.headers["content-location"]).json()
    assert made["sha256"] == hashlib.sha256(BIG).hexdigest()
    api.client.delete(answer.headers["content-location"])


def test_data_that_cannot_be_read_are_refused_with_their_line(api: Api, store: Store) -> None:
    broken = JSONL + b"{nonsense\n"
    where = begun(api, len(broken), name="broken")
    answer = send(api, where, 0, broken)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_data"), answer.text
    assert "line 51" in answer.json()["message"]
    shown = api.client.get(where).json()
    assert (shown["status"], shown["problem"]["code"]) == ("refused", "invalid_data")
    assert list(store.list_objects(f"prj_default{where}/")) == []
    other = begun(api, len(JSONL), sha256="0" * 64)
    answer = send(api, other, 0, JSONL)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/sha256"
    assert api.client.get("/datasets", params={"name": "broken"}).json()["items"] == []


def test_what_came_before_a_connection_broke_is_kept(api: Api) -> None:
    where = begun(api, len(BIG), name="cut")
    _begin_piece(api, where, BIG[: 9 * 2**20]).close()
    kept = wait_until(lambda: offset_of(api, where))
    assert kept <= 9 * 2**20
    answer = _go_on(api, where)
    made = api.client.get(answer.headers["content-location"]).json()
    assert made["sha256"] == hashlib.sha256(BIG).hexdigest()


def _go_on(api: Api, where: str) -> httpx.Response:
    """Send the rest as a client does: what the broken PATCH still held may be stored meanwhile."""

    def sent() -> httpx.Response | None:
        offset = offset_of(api, where)
        answer = send(api, where, offset, BIG[offset:])
        return None if answer.status_code == 409 else answer

    answer = wait_until(sent)
    assert answer is not None
    assert answer.status_code == 204, answer.text
    return answer


def _begin_piece(api: Api, where: str, content: bytes) -> socket.socket:
    """Send less than a PATCH announces."""
    host, port = api.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(
        f"PATCH {where} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api.key}\r\n"
        "Content-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\n"
        f"Content-Length: {len(BIG)}\r\n\r\n".encode()
        + content
    )
    return connection


def test_an_upload_goes_on_at_another_process_after_kill_9(api: Api) -> None:
    where = begun(api, len(BIG), name="survivor")
    with running(api.environment, api.key) as mortal:
        connection = _begin_piece(mortal, where, BIG[: 17 * 2**20])
        kept = wait_until(lambda: (at := offset_of(api, where)) >= 16 * 2**20 and at)  # two blocks
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait(10)
        connection.close()
    assert offset_of(api, where) == kept
    answer = send(api, where, kept, BIG[kept:])
    assert answer.status_code == 204, answer.text
    made = api.client.get(answer.headers["content-location"]).json()
    assert (made["rows"], made["sha256"]) == (300, hashlib.sha256(BIG).hexdigest())


def test_a_check_whose_process_was_killed_is_taken_up(api: Api, store: Store) -> None:
    where = begun(api, len(JSONL), name="taken-up")
    assert send(api, where, 0, JSONL[:-1]).status_code == 204
    upload = where.rpartition("/")[2]
    # As a process leaves it that was killed after the last block: claimed, and renewed no more.
    key = f"prj_default/uploads/{upload}/last"
    store.put_bytes(key, JSONL[-1:])
    api.write(
        "INSERT INTO upload_blocks (upload_id, start, project_id, size, key)"
        " VALUES (:u, :s, 'prj_default', 1, :k)",
        u=upload,
        s=len(JSONL) - 1,
        k=key,
    )
    api.write(
        "UPDATE uploads SET received = length, status = 'checking', checker = 'gone',"
        " checking_until = now() + interval '1 minute' WHERE id = :u",
        u=upload,
    )
    assert api.client.get(where).json()["status"] == "checking"  # someone is at it
    assert api.client.delete(where).status_code == 409
    api.write("UPDATE uploads SET checking_until = now() WHERE id = :u", u=upload)
    assert offset_of(api, where) == len(JSONL)  # all that a client asks who waits for no more
    done = wait_until(lambda: _done(api, where))
    assert api.client.get(f"/datasets/{done}").json()["rows"] == 50
    assert len(api.client.get("/datasets", params={"name": "taken-up"}).json()["items"]) == 1


def test_a_store_that_is_away_is_said_and_the_upload_goes_on_afterwards(api: Api) -> None:
    where = begun(api, len(JSONL), name="outage")
    with gate(int(api.environment["S3_ENDPOINT"].rpartition(":")[2])) as door:
        through = {"S3_ENDPOINT": f"http://127.0.0.1:{door.port}"}
        with running({**api.environment, **through}, api.key) as other:
            door.shut()
            answer = send(other, where, 0, JSONL)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert offset_of(api, where) == 0
            door.open()
            assert send(other, where, 0, JSONL).status_code == 204
    assert _done(api, where)


def _done(api: Api, where: str) -> str | None:
    shown: dict[str, Any] = api.client.get(where).json()
    return shown["dataset_id"] if shown["status"] == "done" else None


def test_two_clients_at_once_make_one_data_set(api: Api) -> None:
    where = begun(api, len(BIG), name="raced-upload")
    with (
        running(api.environment, api.key) as other,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        answers = list(pool.map(lambda a: _send_all(a, where), (api, other)))
    assert 204 in answers
    wait_until(lambda: _done(api, where))
    [made] = api.client.get("/datasets", params={"name": "raced-upload"}).json()["items"]
    assert made["sha256"] == hashlib.sha256(BIG).hexdigest()


def _send_all(api: Api, where: str) -> int:
    with api.with_key(api.key) as client:
        headers = {**PIECE, "Upload-Offset": "0"}
        return client.patch(where, headers=headers, content=BIG, timeout=60).status_code


def test_limits_of_a_project(api: Api) -> None:
    few = {"POLAR_UPLOADS_OPEN": "2", "POLAR_DATASETS_MAX": "1"}
    api.write("UPDATE uploads SET finished_at = now(), status = 'done'")
    with running({**api.environment, **few}, api.key) as limited:
        api.write("UPDATE datasets SET deleted_at = now()")
        assert [begin(limited, 5).status_code for _ in range(3)] == [201, 201, 409]
        hub = {"name": "x", "source": "hub", "location": "org/x"}
        assert limited.client.post("/datasets", json=hub).status_code == 201
        for answer in (
            limited.client.post("/datasets", json=hub),
            limited.client.post(
                "/datasets", params={"name": "x", "file_name": "x.jsonl"}, content=JSONL
            ),
            begin(limited, 5),
        ):
            assert answer.status_code == 409, answer.text
            assert answer.json()["code"] == "too_many_datasets"


def test_what_nobody_finishes_goes(api: Api, store: Store) -> None:
    where = begun(api, 100)
    assert send(api, where, 0, b"a" * 40).status_code == 204
    api.write("UPDATE uploads SET expires_at = now() WHERE id = :u", u=where.rpartition("/")[2])
    for answer in (api.client.get(where), send(api, where, 40, b"a")):
        assert (answer.status_code, answer.json()["code"]) == (410, "upload_expired")
    done = subprocess.run(
        [sys.executable, "-m", "app.housekeeping"],
        cwd=ROOT,
        env=api.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unfinished_uploads"]["count"] == 1
    assert api.client.get(where).status_code == 404
    assert list(store.list_objects(f"prj_default{where}/")) == []
    metrics = api.client.get("/metrics").text
    assert 'polar_housekeeping_removed{kind="unfinished_uploads"}' in metrics
    assert 'polar_housekeeping_age_seconds{run="any"}' in metrics


def test_uploads_belong_to_their_project_and_role(api: Api) -> None:
    where = begun(api, 100)
    viewer = api.role("viewer")
    assert viewer.post("/uploads").status_code == 403
    assert viewer.patch(where, headers={**PIECE, "Upload-Offset": "0"}).status_code == 403
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("UPDATE uploads SET project_id = 'prj_x' WHERE id = :u", u=where.rpartition("/")[2])
    assert api.client.head(where).status_code == 404
    assert send(api, where, 0, b"x").status_code == 404
    assert api.client.delete(where).status_code == 404
