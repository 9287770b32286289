"""Checkpoints, artifacts and published models: lists, downloads, versions, deletion."""

import concurrent.futures
import hashlib
import io
import socket
import tarfile
from base64 import b64encode
from dataclasses import replace

import httpx
import psutil
import pytest
from sqlalchemy.orm import Session

from app.ids import new_id
from app.registry.service import create_version
from app.storage import Store
from tests.app.server import Api, running
from tests.app.stored import keep, new_version, publish, store_of
from tests.app.streams import new_job
from tests.services import wait_until

CONTENT = bytes(range(256)) * 3000  # three chunks of a proxied download
SHA256 = hashlib.sha256(CONTENT).hexdigest()


FILES = {"README.md": b"# card", "sub/weights.bin": CONTENT}


@pytest.fixture(scope="module")
def store(api: Api) -> Store:
    return store_of(api)


@pytest.fixture(scope="module")
def job(api: Api) -> str:
    job_id = new_job(api)
    keep(api, job_id, "model/모델 1.bin", CONTENT)
    keep(api, job_id, "ledger.jsonl", b"", kind="ledger")
    return job_id


def test_artifacts_are_listed_with_their_checksums(api: Api, job: str) -> None:
    found = api.client.get(f"/jobs/{job}/artifacts").json()
    assert [(a["path"], a["kind"], a["size"]) for a in found["items"]] == [
        ("ledger.jsonl", "ledger", 0),
        ("model/모델 1.bin", "model", len(CONTENT)),
    ]
    assert found["items"][1]["sha256"] == SHA256
    answer = api.client.get(found["items"][1]["url"])
    assert answer.content == CONTENT


def test_a_download_names_its_checksum(api: Api, job: str) -> None:
    answer = api.client.get(f"/jobs/{job}/artifacts/model/모델 1.bin")
    assert (answer.status_code, answer.content == CONTENT) == (200, True)
    headers = answer.headers
    assert headers["etag"] == f'"{SHA256}"'
    digest = b64encode(hashlib.sha256(CONTENT).digest()).decode()
    assert headers["repr-digest"] == f"sha-256=:{digest}:"
    assert headers["content-length"] == str(len(CONTENT))
    assert "UTF-8''%EB%AA%A8%EB%8D%B8%201.bin" in headers["content-disposition"]
    head = api.client.head(f"/jobs/{job}/artifacts/model/모델 1.bin")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "repr-digest", "content-length", "accept-ranges"):
        assert head.headers[name] == headers[name]
    empty = api.client.get(f"/jobs/{job}/artifacts/ledger.jsonl")
    assert (empty.status_code, empty.content) == (200, b"")


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=700000-", 700_000, 768_000),
        ("bytes=-5", 767_995, 768_000),
        ("bytes=767999-999999999", 767_999, 768_000),
    ],
)
def test_parts_of_a_file(api: Api, job: str, asked: str, start: int, end: int) -> None:
    path = f"/jobs/{job}/artifacts/model/모델 1.bin"
    answer = api.client.get(path, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
    assert answer.content == CONTENT[start:end]
    other = api.client.get(path, headers={"Range": asked, "If-Range": '"other"'})
    assert (other.status_code, len(other.content)) == (200, len(CONTENT))


@pytest.mark.parametrize("asked", ["bytes=0-1,5-6", "bytes=5-2", "lines=1-2", "bytes=-"])
def test_ranges_that_are_none_get_the_whole_file(api: Api, job: str, asked: str) -> None:
    path = f"/jobs/{job}/artifacts/model/모델 1.bin"
    answer = api.client.get(path, headers={"Range": asked})
    assert (answer.status_code, len(answer.content)) == (200, len(CONTENT))


def test_ranges_behind_the_end_and_known_files(api: Api, job: str) -> None:
    path = f"/jobs/{job}/artifacts/model/모델 1.bin"
    answer = api.client.get(path, headers={"Range": "bytes=768000-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */768000")
    assert answer.json()["code"] == "invalid_range"
    known = api.client.get(path, headers={"If-None-Match": f'"{SHA256}"'})
    assert (known.status_code, known.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["..%2f..%2fsecrets%2fkey", "%2e%2e/key", "a/..%2f..%2fkey", "%2fetc%2fpasswd", "a%00b"]
)
def test_b33_paths_that_climb_out_are_refused(api: Api, job: str, path: str) -> None:
    url = httpx.URL(f"{api.url}/jobs/{job}/artifacts/").copy_with(
        raw_path=f"/jobs/{job}/artifacts/{path}".encode()
    )
    answer = api.client.get(url)
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "invalid_path"


def test_unknown_files_and_lost_objects(api: Api, store: Store) -> None:
    job = new_job(api)
    answer = api.client.get(f"/jobs/{job}/artifacts/none")
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")
    keep(api, job, "lost.bin", b"x")
    store.delete(f"prj_default/jobs/{job}/att/lost.bin")
    answer = api.client.get(f"/jobs/{job}/artifacts/lost.bin")
    assert (answer.status_code, answer.json()["code"]) == (404, "object_missing")


def test_all_artifacts_as_one_tar(api: Api, job: str) -> None:
    answer = api.client.get(f"/jobs/{job}/artifacts.tar")
    assert answer.headers["content-length"] == str(len(answer.content))
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        contents = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
    assert contents == {"ledger.jsonl": b"", "model/모델 1.bin": CONTENT}
    ledger = api.client.get(f"/jobs/{job}/artifacts.tar", params={"kind": "ledger"})
    with tarfile.open(fileobj=io.BytesIO(ledger.content)) as tar:
        assert tar.getnames() == ["ledger.jsonl"]
    none = api.client.get(f"/jobs/{job}/artifacts.tar", params={"kind": "report"})
    assert none.status_code == 404


def test_a_redirect_goes_to_the_public_endpoint_and_keeps_conditions_and_ranges(
    api: Api, job: str
) -> None:
    path = f"/jobs/{job}/artifacts/model/모델 1.bin?redirect=true"
    assert api.client.get(path).status_code == 200  # no public endpoint is known
    public = {"S3_PUBLIC_ENDPOINT": api.environment["S3_ENDPOINT"]}
    with running({**api.environment, **public}, api.key) as other:
        head = other.client.head(path)  # a link would be one for GET
        assert (head.status_code, head.headers["etag"]) == (200, f'"{SHA256}"')
        known = other.client.get(path, headers={"If-None-Match": f'"{SHA256}"'})
        assert known.status_code == 304
        answer = other.client.get(path)
        assert (answer.status_code, answer.headers["x-checksum-sha256"]) == (307, SHA256)
        link = answer.headers["location"]
        assert httpx.get(link).content == CONTENT  # without any key
        part = httpx.get(link, headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.content) == (206, CONTENT[5:10])
        assert httpx.get(link, headers={"Range": "bytes=768000-"}).status_code == 416


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("If-None-Match", f'"x", W/"{SHA256}" , "y,z"', 304),  # weak comparison: RFC 9110, 13.1.2
        ("If-None-Match", "*", 304),
        ("If-None-Match", f'"{SHA256[:10]}"', 200),
        ("If-None-Match", SHA256, 200),  # a tag has quotes
        ("If-Match", f'"x", "{SHA256}"', 200),
        ("If-Match", "*", 200),
        ("If-Match", f'W/"{SHA256}"', 412),  # strong comparison: 13.1.1
        ("If-Match", '"x"', 412),
    ],
)
def test_conditions(api: Api, job: str, name: str, value: str, status: int) -> None:
    path = f"/jobs/{job}/artifacts/model/모델 1.bin"
    answer = api.client.get(path, headers={name: value})
    assert answer.status_code == status, answer.text
    if status == 412:
        assert answer.json()["code"] == "precondition_failed"
    else:
        assert answer.headers["etag"] == f'"{SHA256}"'


BIG = 64 * 2**20  # more than sockets hold on the way


def _connections_to_the_store(api: Api) -> int:
    port = int(api.environment["S3_ENDPOINT"].rpartition(":")[2])
    found = psutil.Process(api.process.pid).net_connections("tcp")
    mine = [c for c in found if c.raddr and c.raddr.port == port and c.status == "ESTABLISHED"]
    return len(mine)


def test_clients_that_are_gone_or_take_nothing_hold_no_connection_to_the_store(api: Api) -> None:
    job = new_job(api)
    keep(api, job, "big.bin", bytes(BIG))
    with running({**api.environment, "POLAR_DOWNLOAD_STALL": "1"}, api.key) as other:
        for leaves in (True, False):
            clients = [_begin_download(other, f"/jobs/{job}/artifacts/big.bin") for _ in range(6)]
            if leaves:
                for client in clients:
                    client.close()
            wait_until(lambda: _connections_to_the_store(other) == 0)
            for client in clients:
                client.close()
        assert len(other.client.get(f"/jobs/{job}/artifacts/big.bin").content) == BIG


def _begin_download(api: Api, path: str) -> socket.socket:
    host, port = api.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {api.key}\r\n\r\n".encode()
    )
    assert client.recv(12) == b"HTTP/1.1 200"
    return client


def test_checkpoints_are_listed_newest_attempt_first(api: Api) -> None:
    job = new_job(api)
    for number in (1, 2):
        attempt = new_id("att")
        api.write(
            "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome,"
            " finished_at) VALUES (:a, 'prj_default', :j, :n, 'local', 'n', 'failed', now())",
            a=attempt,
            j=job,
            n=number,
        )
        for step in (4, 8):
            api.write(
                "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
                " manifest_sha256, size, deleted_at) VALUES (:id, 'prj_default', :j, :a, :s,"
                " 'prj_default/jobs/' || :j || '/' || :a || '/', 'abc', 10,"
                " CASE WHEN :n = 1 AND :s = 4 THEN now() END)",
                id=new_id("ckp"),
                j=job,
                a=attempt,
                s=step,
                n=number,
            )
    items = api.client.get(f"/jobs/{job}/checkpoints").json()["items"]
    assert [(c["attempt"], c["step"]) for c in items] == [(2, 8), (2, 4), (1, 8)]
    assert (items[0]["size"], items[0]["sha256"]) == (10, "abc")
    assert items[0]["location"].startswith("s3://")


# -- models --------------------------------------------------------------------------------------


def test_versions_are_numbered_without_gaps_by_many_publishers(api: Api) -> None:
    """Ten jobs publish the same name at once: each version once, and once per job."""
    jobs = [new_job(api) for _ in range(10)]

    def one(job: str) -> int:
        with Session(api.engine) as session, session.begin():
            return create_version(session, new_version("raced", job)).version

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        versions = list(pool.map(one, jobs))
        again = list(pool.map(one, jobs))
    assert sorted(versions) == list(range(1, 11))
    assert again == versions


def test_models_and_their_files(api: Api) -> None:
    first, second = publish(api, "shop", FILES).version, publish(api, "shop", FILES).version
    models = api.client.get("/models").json()["items"]
    shop = next(m for m in models if m["name"] == "shop")
    assert (shop["versions"], shop["newest"]["version"]) == (2, 2)
    page = api.client.get("/models/shop/versions", params={"limit": 1}).json()
    assert [v["version"] for v in page["items"]] == [2]
    page = api.client.get("/models/shop/versions", params={"cursor": page["next_cursor"]}).json()
    assert [v["version"] for v in page["items"]] == [1]
    assert page["next_cursor"] is None
    detail = api.client.get("/models/shop/versions/2").json()
    assert (detail["id"], detail["metrics"]) == (second.id, {"eval_loss": 1.5})
    assert [f["path"] for f in detail["files"]] == ["README.md", "sub/weights.bin"]
    weights = api.client.get(detail["files"][1]["url"])
    assert hashlib.sha256(weights.content).hexdigest() == detail["files"][1]["sha256"] == SHA256
    assert api.client.head(detail["files"][1]["url"]).headers["etag"] == f'"{SHA256}"'
    archive = api.client.get(detail["links"]["archive"])
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert tar.getnames() == ["README.md", "sub/weights.bin", "manifest.json"]
    assert api.client.get(f"/models/shop/versions/{first.version}/files/none").status_code == 404
    assert api.client.get("/models/shop/versions/3").json()["code"] == "model_not_found"
    assert api.client.get("/models/none/versions").status_code == 404


def test_models_are_paged_by_name(api: Api) -> None:
    names = ["page-a", "page-b", "page-c"]
    for name in names:
        with Session(api.engine) as session, session.begin():
            create_version(session, new_version(name, new_job(api)))
    page = api.client.get("/models", params={"cursor": "page-", "limit": 2}).json()
    assert [m["name"] for m in page["items"]] == names[:2]
    page = api.client.get("/models", params={"cursor": page["next_cursor"], "limit": 1}).json()
    assert [m["name"] for m in page["items"]] == names[2:]


def test_a_deleted_version_leaves_nothing_and_its_number_is_not_used_again(
    api: Api, store: Store
) -> None:
    version = publish(api, "gone", FILES).version
    assert api.client.delete("/models/gone/versions/1").status_code == 204
    assert api.client.delete("/models/gone/versions/1").status_code == 204
    assert api.client.get("/models/gone/versions/1").status_code == 404
    assert list(store.list_objects(version.prefix)) == []
    assert store.head("prj_default/models/gone/v1.json") is None
    assert api.client.get(f"/jobs/{version.job_id}/artifacts").json()["items"] == []
    assert publish(api, "gone", FILES).version.version == 2
    assert api.client.delete("/models/gone/versions/7").status_code == 404


def test_a_version_that_is_used_by_its_jobs_name_is_not_deleted(api: Api) -> None:
    maker = publish(api, "by-job", FILES).job_id
    user = new_job(api)
    api.write(
        """UPDATE jobs SET resolved = jsonb_build_object('model', jsonb_build_object(
        'source', 'job', 'name_or_path', CAST(:maker AS text))) WHERE id = :id""",
        maker=maker,
        id=user,
    )
    answer = api.client.delete("/models/by-job/versions/1")
    assert (answer.status_code, answer.json()["code"]) == (409, "model_in_use")
    api.client.post(f"/jobs/{user}/cancel")
    assert api.client.delete("/models/by-job/versions/1").status_code == 204


def test_a_version_in_use_is_not_deleted(api: Api) -> None:
    publish(api, "base", FILES)
    user = new_job(api)
    api.write(
        """UPDATE jobs SET resolved = '{"model": {"source": "registry", "name_or_path": "base",
        "revision": "1"}}' WHERE id = :id""",
        id=user,
    )
    answer = api.client.delete("/models/base/versions/1")
    assert (answer.status_code, answer.json()["code"]) == (409, "model_in_use")
    assert user in answer.json()["message"]
    api.write("UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE id = :id", id=user)
    assert api.client.delete("/models/base/versions/1").status_code == 204


def test_a_damaged_manifest_is_said_and_not_trusted(api: Api, store: Store) -> None:
    version = publish(api, "damaged", FILES).version
    store.put_bytes(f"{version.prefix}manifest.json", b"{}")
    answer = api.client.get("/models/damaged/versions/1")
    assert answer.status_code == 503
    assert "damaged" in answer.json()["message"]


def test_other_projects_see_none_of_it(api: Api) -> None:
    publish(api, "private", FILES)
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("UPDATE model_versions SET project_id = 'prj_x' WHERE name = 'private'")
    assert api.client.get("/models/private/versions").status_code == 404
    assert api.client.delete("/models/private/versions/1").status_code == 404
    other = replace(new_version("mine", new_job(api)), project_id="prj_x")
    with Session(api.engine) as session, session.begin():
        assert create_version(session, other).version == 1
    assert "mine" not in [m["name"] for m in api.client.get("/models").json()["items"]]
