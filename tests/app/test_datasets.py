"""Data sets over HTTP: uploads, versions, refusals that leave nothing, previews, deletion."""

import concurrent.futures
import gzip
import hashlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from sqlalchemy.orm import Session

from app.datasets.service import Located, locate
from app.errors import NotFound
from app.settings import Settings
from app.storage import Store
from tests.app.server import Api, running
from tests.services import wait_until

ROWS = [
    {"instruction": "환불하려면?", "output": "주문 내역에서 신청하세요."},
    {"instruction": "Opening hours?", "output": "Nine to six."},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


@pytest.fixture(scope="module")
def store(api: Api) -> Store:
    names = {"endpoint": "S3_ENDPOINT", "access_key": "S3_ACCESS_KEY"}
    names |= {"secret_key": "S3_SECRET_KEY", "bucket": "S3_BUCKET"}
    return Store(Settings(**{f"s3_{k}": api.environment[v] for k, v in names.items()}))


def upload(
    api: Api, content: bytes, file_name: str = "상점 data.jsonl", **fields: str
) -> httpx.Response:
    data = {"name": "shop", **fields}
    return api.client.post("/datasets", files={"file": (file_name, content)}, data=data)


def taken(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def leftovers(api: Api, store: Store) -> tuple[int, int, list[str]]:
    """Return rows, objects and temporary files of data sets."""
    rows = api.rows("SELECT count(*) FROM datasets")[0][0]
    objects = len(list(store.list_objects("prj_default/datasets/")))
    files = [p.name for p in (Path(api.environment["POLAR_HOME"]) / "uploads").iterdir()]
    return rows, objects, files


def test_an_upload_is_kept_as_it_was_sent(api: Api, store: Store) -> None:
    answer = upload(api, JSONL, name="kept")
    made = taken(answer)
    assert answer.headers["location"] == f"/datasets/{made['id']}"
    assert (made["name"], made["version"], made["source"]) == ("kept", 1, "upload")
    assert (made["size"], made["sha256"]) == (len(JSONL), hashlib.sha256(JSONL).hexdigest())
    assert (made["file_format"], made["row_format"], made["rows"]) == ("jsonl", "alpaca", 2)
    assert (made["columns"], made["problems"]) == (["instruction", "output"], [])
    key = f"prj_default/datasets/{made['id']}/v1/상점 data.jsonl"
    assert made["location"] == f"s3://{store.bucket}/{key}"
    assert store.get_bytes(key, 10_000) == JSONL
    assert api.client.get(f"/datasets/{made['id']}").json() == made
    assert leftovers(api, store)[2] == []


def test_a_file_sent_as_it_is(api: Api) -> None:
    parameters = {
        "name": "raw",
        "file_name": "x.jsonl",
        "sha256": hashlib.sha256(JSONL).hexdigest(),
    }
    for content_type in ("application/octet-stream", "application/x-ndjson", "text/plain"):
        headers = {"Content-Type": content_type}
        answer = api.client.post("/datasets", params=parameters, content=JSONL, headers=headers)
        assert taken(answer)["rows"] == 2


BROKEN = JSONL * 3 + b'{"instruction": "x", "output"}\n' + JSONL
REFUSED = [
    ("empty.jsonl", b"", "is empty"),
    ("broken.jsonl", BROKEN, "broken.jsonl line 7: it is not valid JSON"),
    ("cp949.jsonl", '{"text": "a"}\n{"text": "환불"}'.encode("cp949"), "line 2 is not UTF-8"),
    ("end.parquet", b"PAR1" + bytes(40), "does not end with PAR1"),
]


@pytest.mark.parametrize(("file_name", "content", "message"), REFUSED)
def test_bad_data_is_refused_with_its_line_and_nothing_stays(
    api: Api, store: Store, file_name: str, content: bytes, message: str
) -> None:
    before = leftovers(api, store)
    answer = upload(api, content, file_name, name="refused")
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["code"] == "invalid_data"
    assert message in problem["message"]
    assert problem["errors"][0]["pointer"] == "/file"
    assert leftovers(api, store) == before
    assert before[2] == []


@pytest.mark.parametrize(
    ("fields", "file_name", "pointer"),
    [
        ({"name": ""}, "x.jsonl", "/name"),
        ({"name": "../up"}, "x.jsonl", "/name"),
        ({"sha256": "0" * 64}, "x.jsonl", "/sha256"),
        ({"sha256": "abc"}, "x.jsonl", "/sha256"),
        ({}, "../../etc/passwd", "/file_name"),
        ({}, "..", "/file_name"),
        ({}, "a\\b.jsonl", "/file_name"),
        ({}, "가" * 80 + ".jsonl", "/file_name"),
    ],
)
def test_what_is_said_of_an_upload_is_checked(
    api: Api, store: Store, fields: dict[str, str], file_name: str, pointer: str
) -> None:
    before = leftovers(api, store)
    answer = upload(api, JSONL, file_name, **fields)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert leftovers(api, store) == before


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("multipart/form-data", b"x", "malformed_form"),
        ("multipart/form-data; boundary=b", b"nonsense", "malformed_form"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n{}',
            "malformed_form",
        ),
        ("application/json", b"{", "malformed_json"),
    ],
)
def test_malformed_bodies_are_a_clear_400(
    api: Api, content_type: str, body: bytes, code: str
) -> None:
    answer = api.client.post("/datasets", content=body, headers={"Content-Type": content_type})
    assert (answer.status_code, answer.json()["code"]) == (400, code), answer.text


@pytest.mark.parametrize(
    ("head", "code", "pointer"),
    [
        (b'name="other"', "unknown_field", "/other"),
        (b'name="file"', "no_file_name", "/file"),
        (b'name="name"; filename="x"', "invalid_payload", "/file_name"),
    ],
)
def test_fields_of_a_form_are_checked(api: Api, head: bytes, code: str, pointer: str) -> None:
    body = b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\nx\r\n--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = api.client.post("/datasets", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_uploads_have_a_limit(api: Api, store: Store) -> None:
    before = leftovers(api, store)
    with running({**api.environment, "POLAR_UPLOAD_MAX_BYTES": "1000"}, api.key) as small:
        long = upload(small, b"x" * 200_000, "x.jsonl")
        assert (long.status_code, long.json()["code"]) == (413, "upload_too_large")
        pieces: Iterator[bytes] = iter([b"x" * 600, b"x" * 600])  # no Content-Length
        chunked = small.client.post(
            "/datasets",
            params={"name": "x", "file_name": "x.jsonl"},
            content=pieces,
            headers={"Content-Type": "application/octet-stream"},
        )
        assert (chunked.status_code, chunked.json()["code"]) == (413, "upload_too_large")
        assert upload(small, JSONL, name="small-enough").status_code == 201
    after = leftovers(api, store)
    assert (after[0], after[1], after[2]) == (before[0] + 1, before[1] + 1, [])


def test_a_big_upload_is_never_whole_in_memory(api: Api) -> None:
    row = json.dumps({"text": "x" * 1_000_000}).encode() + b"\n"
    size = 120 * len(row)
    process = psutil.Process(api.process.pid)
    before = process.memory_info().rss
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            api.client.post,
            "/datasets",
            params={"name": "big", "file_name": "big.jsonl"},
            content=(row for _ in range(120)),
            headers={"Content-Type": "application/octet-stream"},
            timeout=120,
        )
        most = before
        while not answer.done():
            most = max(most, process.memory_info().rss)
            concurrent.futures.wait([answer], timeout=0.01)
    made = taken(answer.result())
    assert (made["size"], made["rows"]) == (size, 120)
    # What is held: 1 MiB being written, then three parts of 8 MiB on their way to the store.
    assert most - before < size / 2
    api.client.delete(f"/datasets/{made['id']}")


def test_versions_of_many_uploads_at_once(api: Api, store: Store) -> None:
    def one(number: int) -> dict[str, Any]:
        content = json.dumps({"text": f"row {number}"}).encode()
        with api.with_key(api.key) as client:
            files, data = {"file": ("x.jsonl", content)}, {"name": "raced"}
            made = taken(client.post("/datasets", files=files, data=data, timeout=60))
        key = made["location"].removeprefix(f"s3://{store.bucket}/")
        assert f"/{made['id']}/v{made['version']}/" in key
        assert store.get_bytes(key, 1000) == content
        return made

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        made = list(pool.map(one, range(6)))
    assert sorted(m["version"] for m in made) == [1, 2, 3, 4, 5, 6]
    for one_of in made:
        objects = list(store.list_objects(f"prj_default/datasets/{one_of['id']}/"))
        assert len(objects) == 1
    listed = api.client.get("/datasets", params={"name": "raced", "limit": 4}).json()
    rest = api.client.get(
        "/datasets", params={"name": "raced", "cursor": listed["next_cursor"]}
    ).json()
    ids = [item["id"] for item in listed["items"] + rest["items"]]
    assert ids == sorted((m["id"] for m in made), reverse=True)


def test_previews(api: Api) -> None:
    made = taken(upload(api, JSONL, name="preview"))
    shown = api.client.get(f"/datasets/{made['id']}/preview", params={"limit": 1}).json()
    assert shown["rows"] == [{"line": 1, "values": ROWS[0], "problem": None, "shortened": False}]
    assert api.client.get(made["links"]["preview"]).json()["rows"][1]["line"] == 2
    odd = taken(upload(api, b'{"text": "\\ud800", "score": NaN}', "x.jsonl", name="preview"))
    values = api.client.get(odd["links"]["preview"]).json()["rows"][0]["values"]
    assert values == {"text": "?", "score": "NaN"}
    packed = taken(upload(api, gzip.compress(JSONL * 100_000), "x.jsonl.gz", name="preview"))
    assert len(api.client.get(packed["links"]["preview"]).json()["rows"]) == 10
    csv = taken(upload(api, b"text\n" + b"a" * 1000 + b"\n" * 3 + b"b\n", "x.csv", name="preview"))
    rows = api.client.get(csv["links"]["preview"]).json()["rows"]
    assert [(row["line"], row["values"]["text"][:1]) for row in rows] == [(2, "a"), (5, "b")]


def test_the_preview_of_a_long_file_reads_its_head_only(api: Api) -> None:
    rows = b"".join(json.dumps({"text": "x" * 300_000}).encode() + b"\n" for _ in range(10))
    made = taken(upload(api, rows, "x.jsonl", name="long"))
    shown = api.client.get(made["links"]["preview"]).json()
    assert [row["line"] for row in shown["rows"]] == [1, 2, 3, 4, 5, 6]
    assert "first 2 MiB" in shown["note"]


@pytest.mark.train
def test_parquet_is_described_by_its_footer(api: Api, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    turns = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]] * 3
    tables = {
        "messages": pa.table({"id": [1, 2, 3], "messages": turns}),
        "sharegpt": pa.table({"conversations": [[{"from": "human", "value": "a"}]] * 3}),
        "prompt_completion": pa.table({"prompt": ["a"] * 3, "completion": ["b"] * 3}),
    }
    for row_format, table in tables.items():
        pq.write_table(table, tmp_path / "x.parquet")
        content = (tmp_path / "x.parquet").read_bytes()
        made = taken(upload(api, content, "x.parquet", name="parquet"))
        assert (made["file_format"], made["row_format"]) == ("parquet", row_format)
        assert (made["rows"], made["columns"]) == (3, table.column_names)
        shown = api.client.get(made["links"]["preview"]).json()
        assert shown["rows"] == []
        assert "Parquet" in shown["note"]
        torn = upload(api, content[: len(content) // 2], "x.parquet")
        assert torn.status_code == 422


def test_places_elsewhere_are_registered(api: Api) -> None:
    hub = {"name": "places", "source": "hub", "location": "org/shop-dialogues"}
    made = taken(api.client.post("/datasets", json=hub))
    assert (made["version"], made["source"], made["location"]) == (1, "hub", "org/shop-dialogues")
    s3 = {"name": "places", "source": "s3", "location": "s3://data/shop.jsonl"}
    made = taken(api.client.post("/datasets", json=s3))
    assert (made["version"], made["rows"], made["file_format"]) == (2, None, None)
    assert api.client.get(made["links"]["preview"]).json()["rows"] == []


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"location": "../etc"}, "/location"),
        ({"location": "a/b/c"}, "/location"),
        ({"source": "s3", "location": "shop.jsonl"}, "/location"),
        ({"source": "s3", "location": "s3://bucket"}, "/location"),
        ({"source": "s3", "location": "s3://127.0.0.1:9000/x.jsonl"}, "/location"),
        ({"source": "s3", "location": "s3://OWN/prj_other/datasets/x"}, "/location"),
        ({"source": "s3", "location": "s3://OWN/prj_default/../prj_other/x"}, "/location"),
        ({"source": "ftp"}, "/source"),
        ({"nam": "x"}, "/nam"),
        ({"name": 7}, "/name"),
    ],
)
def test_registrations_are_checked(api: Api, change: dict[str, Any], pointer: str) -> None:
    body = {"name": "x", "source": "hub", "location": "org/x", **change}
    body["location"] = body["location"].replace("OWN", api.environment["S3_BUCKET"])
    answer = api.client.post("/datasets", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_deleted_data_set_leaves_no_file_and_no_number(api: Api, store: Store) -> None:
    made = taken(upload(api, JSONL, name="gone"))
    assert api.client.delete(f"/datasets/{made['id']}").status_code == 204
    assert api.client.delete(f"/datasets/{made['id']}").status_code == 204
    assert list(store.list_objects(f"prj_default/datasets/{made['id']}/")) == []
    assert api.client.get(f"/datasets/{made['id']}").json()["code"] == "dataset_not_found"
    assert api.client.get(f"/datasets/{made['id']}/preview").status_code == 404
    assert api.client.get("/datasets", params={"name": "gone"}).json()["items"] == []
    assert taken(upload(api, JSONL, name="gone"))["version"] == 2


def submit(api: Api, data: dict[str, Any]) -> httpx.Response:
    spec = {"task": {"type": "sft"}, "model": {"name_or_path": "org/model"}, "data": data}
    return api.client.post("/jobs", json=spec)


@pytest.mark.parametrize("where", ["train", "validation", "revision"])
def test_a_data_set_that_an_open_job_reads_stays(api: Api, where: str) -> None:
    made = taken(upload(api, JSONL, name=f"used-{where}"))
    source: dict[str, Any] = {"source": "dataset", "path": made["id"]}
    if where == "revision":
        newer = taken(upload(api, JSONL, name=f"used-{where}"))
        source = {"source": "dataset", "path": newer["id"], "revision": "1"}
    data: dict[str, Any] = {"train": [source], "validation": {"split_ratio": 0.1}}
    if where == "validation":
        data = {"train": [{"source": "hub", "path": "a/b"}], "validation": [source]}
    job = taken(submit(api, data))["id"]
    answer = api.client.delete(f"/datasets/{made['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "dataset_in_use")
    assert job in answer.json()["message"]
    assert api.client.post(f"/jobs/{job}/cancel").json()["status"] == "cancelled"
    assert api.client.delete(f"/datasets/{made['id']}").status_code == 204


def test_a_job_pins_what_it_reads(api: Api) -> None:
    """The resolved spec names the version, or the place, that the data set stood for."""
    first, second = (taken(upload(api, JSONL, name="pinned")) for _ in range(2))
    hub = {"name": "pinned-hub", "source": "hub", "location": "org/shop"}
    place = taken(api.client.post("/datasets", json=hub))
    sources = [
        {"source": "dataset", "path": second["id"]},
        {"source": "dataset", "path": second["id"], "revision": "1"},
        {"source": "dataset", "path": place["id"], "num_samples": 5},
    ]
    resolved = taken(submit(api, {"train": sources}))["resolved"]["data"]["train"]
    assert [(s["source"], s["path"], s["revision"], s["num_samples"]) for s in resolved] == [
        ("dataset", second["id"], None, None),
        ("dataset", first["id"], None, None),
        ("hub", "org/shop", None, 5),
    ]
    sources[1]["revision"] = "9"
    answer = submit(api, {"train": sources})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/data/train/1/revision"


def test_jobs_find_data_sets_and_their_versions(api: Api) -> None:
    first, second = (taken(upload(api, JSONL, name="located")) for _ in range(2))
    with Session(api.engine) as session:
        found = locate(session, "prj_default", second["id"])
        assert found == Located(
            dataset_id=second["id"],
            version=2,
            source="upload",
            location=f"prj_default/datasets/{second['id']}/v2/상점 data.jsonl",
            file_name="상점 data.jsonl",
            size=len(JSONL),
            sha256=hashlib.sha256(JSONL).hexdigest(),
            file_format="jsonl",
        )
        for version in ("1", "v1"):
            assert locate(session, "prj_default", second["id"], version).dataset_id == first["id"]
        for project, version in (("prj_default", "3"), ("prj_default", "x"), ("prj_x", None)):
            with pytest.raises(NotFound):
                locate(session, project, second["id"], version)


def test_an_upload_that_breaks_off_leaves_nothing(api: Api, store: Store) -> None:
    before = leftovers(api, store)
    _begin_upload(api).close()
    wait_until(lambda: leftovers(api, store) == before)


def test_what_a_killed_api_left_is_removed_by_the_next_one(api: Api, store: Store) -> None:
    with running(api.environment, api.key) as mortal:
        connection = _begin_upload(mortal)
        wait_until(lambda: leftovers(api, store)[2])
        mortal.process.send_signal(signal.SIGKILL)
        mortal.process.wait(10)
        connection.close()
    assert len(leftovers(api, store)[2]) == 1
    with running(api.environment, api.key):
        assert leftovers(api, store)[2] == []


def _begin_upload(api: Api) -> socket.socket:
    host, port = api.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(
        f"POST /datasets?name=x&file_name=x.jsonl HTTP/1.1\r\nHost: {host}\r\n"
        f"Authorization: Bearer {api.key}\r\nContent-Type: text/plain\r\n"
        "Content-Length: 1000000\r\n\r\n".encode()
        + b"x" * 1000
    )
    return connection


def test_roles_and_projects(api: Api) -> None:
    made = taken(upload(api, JSONL, name="roles"))
    viewer = api.role("viewer")
    assert viewer.get(f"/datasets/{made['id']}").status_code == 200
    assert viewer.delete(f"/datasets/{made['id']}").status_code == 403
    files, data = {"file": ("x.jsonl", JSONL)}, {"name": "x"}
    assert viewer.post("/datasets", files=files, data=data).status_code == 403
    api.write("INSERT INTO projects (id, name) VALUES ('prj_x', 'x') ON CONFLICT DO NOTHING")
    api.write("UPDATE datasets SET project_id = 'prj_x' WHERE id = :id", id=made["id"])
    assert api.client.get(f"/datasets/{made['id']}").status_code == 404
    assert api.client.delete(f"/datasets/{made['id']}").status_code == 404


def test_a_job_names_only_places_that_are_open_to_it(api: Api) -> None:
    def places(**source: Any) -> list[tuple[str, str]]:
        model = {"source": "s3", "name_or_path": f"s3://{api.environment['S3_BUCKET']}/prj_x/m"}
        spec = {"task": {"type": "sft"}, "model": model, "data": {"train": [source]}}
        answer = api.client.post("/jobs", json=spec)
        assert answer.status_code == 422, answer.text
        return [(e["pointer"], e["message"]) for e in answer.json()["errors"]]

    elsewhere = {"name": "elsewhere", "source": "s3", "location": "s3://payroll/rows.jsonl"}
    registered = taken(api.client.post("/datasets", json=elsewhere))["id"]
    for source in (
        {"source": "s3", "path": "s3://payroll/rows.jsonl"},
        {"source": "dataset", "path": registered},
    ):
        data, model = sorted(places(**source))
        assert data[0] == "/data/train/0/path"
        assert "'payroll' is not open to jobs here" in data[1]
        assert "POLAR_S3_BUCKETS" in data[1]
        assert model[0] == "/model/name_or_path"
        assert "belongs to another project" in model[1]
    with_keys = {"source": "s3", "path": "s3://payroll/x", "token": {"secret": "no-such-secret"}}
    pointers = [pointer for pointer, _ in places(**with_keys)]
    assert pointers == ["/model/name_or_path", "/data/train/0/token/secret"]
    own = {"source": "s3", "path": f"s3://{api.environment['S3_BUCKET']}/prj_default/none"}
    assert submit(api, {"train": [own]}).status_code == 201
