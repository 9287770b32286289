"""Sources elsewhere: a real S3 store, and a hub that says no or is not there."""

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.services import S3
from trainer_core.data import s3 as store
from trainer_core.data.report import read_report
from trainer_core.data.sources import sources_of
from trainer_core.errors import DataUnavailable, InvalidData
from trainer_core.plans.totals import exactly, rows_of
from trainer_core.spec import Launch, Paths, TrainSpec

LINE = json.dumps({"text": "안녕"}, ensure_ascii=False).encode() + b"\n"


def launch(source: dict[str, Any], model: str = "owner/model") -> Launch:
    document = {
        "task": {"type": "sft"},
        "model": {"name_or_path": model},
        "data": {"train": [source]},
    }
    spec = TrainSpec.model_validate(document)
    return Launch(attempt_id="a", job_id="j", job_name="n", spec=spec, paths=Paths(work="/no"))


def read(address: str, cache: Path) -> list[dict[str, Any]]:
    given = launch({"source": "s3", "path": address})
    [source] = sources_of(given, {}, cache)["train"]
    return [row.values for row in source.rows()]


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The session's store as the AWS_* variables name it, and a client for the test's bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    monkeypatch.setenv("AWS_REGION", s3.region)
    return boto3.resource("s3").Bucket(s3.bucket)


def test_object_and_prefix(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Key="데이터/b.jsonl", Body=LINE * 2)
    bucket.put_object(Key="데이터/a.csv", Body=b"text\nhello\n")
    bucket.put_object(Key="데이터/README.md", Body=b"no data")
    bucket.put_object(Key="데이터2/c.jsonl", Body=LINE)
    one = f"s3://{bucket.name}/데이터/b.jsonl"
    assert read(one, tmp_path / "1") == [{"text": "안녕"}] * 2
    every = f"s3://{bucket.name}/데이터"
    assert read(every, tmp_path / "2") == [{"text": "hello"}, *[{"text": "안녕"}] * 2]


def test_rows_of_objects_are_counted_where_they_lie(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Key="counted/b.jsonl", Body=LINE * 3)
    bucket.put_object(Key="counted/a.csv", Body=b"text\nhello\n")
    bucket.put_object(Key="counted/README.md", Body=b"no data")
    for address, rows in (("counted", 4), ("counted/b.jsonl", 3)):
        given = launch({"source": "s3", "path": f"s3://{bucket.name}/{address}"})
        [source] = sources_of(given, {}, tmp_path)["train"]
        assert rows_of(source, None) == exactly(rows)
    assert not [*tmp_path.iterdir()]


def test_etags_change_with_the_content(bucket: Any) -> None:
    address = f"s3://{bucket.name}/a.jsonl"
    bucket.put_object(Key="a.jsonl", Body=LINE)
    before = store.etags(address, "data.train[0]")
    bucket.put_object(Key="a.jsonl", Body=LINE * 2)
    assert store.etags(address, "data.train[0]") != before


def test_keys_never_leave_the_cache(bucket: Any, tmp_path: Path) -> None:
    bucket.put_object(Key="x/a.jsonl", Body=LINE)
    read(f"s3://{bucket.name}/x", tmp_path / "cache")
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert all(p.is_relative_to(tmp_path / "cache") for p in files)


def test_missing_object(bucket: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidData) as wrong:
        read(f"s3://{bucket.name}/nothing.jsonl", tmp_path)
    assert wrong.value.field == "data.train[0].path"
    assert "there is no data file at" in wrong.value.message


def test_wrong_keys(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidData, match="check the AWS_\\* credentials"):
        read(f"s3://{bucket.name}/a.jsonl", tmp_path)


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_store_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(DataUnavailable, match="cannot be reached"):
        read("s3://bucket/a.jsonl", tmp_path)


class Hub(BaseHTTPRequestHandler):
    """A hub with one data set, `owner/data`, which wants a token; the rest is not there."""

    protocol_version = "HTTP/1.1"
    commit = "a" * 40

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        known = self.headers.get("Authorization") == "Bearer hf_right"
        if not known or not path.startswith(("/api/datasets/owner/data", "/datasets/owner/data/")):
            self.answer(404, b"", **{"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in path:
            entry = {"type": "file", "path": "data.jsonl", "size": len(LINE) * 3, "oid": "1" * 40}
            self.answer(200, json.dumps([entry]).encode())
        elif path.startswith("/api/"):
            files = [{"rfilename": "data.jsonl"}]
            content = {"id": "owner/data", "sha": self.commit, "tags": [], "siblings": files}
            self.answer(200, json.dumps(content).encode())
        elif path.endswith(f"/resolve/{self.commit}/data.jsonl"):
            self.answer(200, LINE * 3, ETag='"1"', **{"X-Repo-Commit": self.commit})
        else:
            self.answer(404, b"", **{"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


PREPARE = """
import pathlib, sys
from trainer_core.errors import TrainerError
from trainer_core.prepare import prepare_command
try:
    prepare_command(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
except TrainerError as error:
    print(type(error).__name__, error.field, error.message, sep="|")
"""


def run_prepare(
    given: Launch, folder: Path, hub: str, *, code: str = PREPARE, **secrets: str
) -> str:
    """What a preparation prints; in a process, because the hub's address is read at import."""
    (folder / "work").mkdir()
    (folder / "launch.json").write_text(given.model_dump_json())
    read_end, write_end = os.pipe()
    os.write(write_end, json.dumps(secrets).encode())
    os.close(write_end)
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_HOME": str(folder / "hub"),
        "POLAR_SECRETS_FD": str(read_end),
    } | ({} if hub else {"HF_HUB_OFFLINE": "1"})
    arguments = [str(folder / "launch.json"), str(folder / "work" / "prepared")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        pass_fds=[read_end],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(read_end)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ending(given: Launch, folder: Path, hub: str, **secrets: str) -> list[str]:
    """Class, field and message of the error with which a preparation ends; nothing stays."""
    said = run_prepare(given, folder, hub, **secrets)
    assert list((folder / "work").iterdir()) == []
    return said.split("|")


@pytest.mark.train
def test_model_that_the_hub_does_not_have(hub: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE)
    source = {"source": "folder", "path": str(tmp_path / "a.jsonl")}
    kind, field, message = ending(launch(source, "owner/no-such-model"), tmp_path, hub)
    assert (kind, field) == ("ModelUnavailable", "model.name_or_path")
    assert "owner/no-such-model" in message
    assert "check the name" in message


def with_tokenizer(folder: Path, source: dict[str, Any]) -> Launch:
    from tests.trainer_core import chat

    chat.qwen().save_pretrained(folder / "model")
    given = launch(source)
    paths = given.paths.model_copy(update={"model": str(folder / "model")})
    return given.model_copy(update={"paths": paths})


PRIVATE = {"source": "hub", "path": "owner/data", "token": {"secret": "hub-token"}}


@pytest.mark.sampled
@pytest.mark.train
def test_data_set_of_the_hub_with_a_token(hub: str, tmp_path: Path) -> None:
    given = with_tokenizer(tmp_path, PRIVATE)
    assert run_prepare(given, tmp_path, hub, **{"hub-token": "hf_right"}) == ""
    report = read_report(tmp_path / "work" / "prepared")
    assert report is not None
    assert (report.rows_kept, report.formats) == (3, {"train/0": "text"})


@pytest.mark.sampled
@pytest.mark.train
def test_data_set_that_the_hub_does_not_give(hub: str, tmp_path: Path) -> None:
    given = with_tokenizer(tmp_path, {"source": "hub", "path": "owner/data"})
    kind, field, message = ending(given, tmp_path, hub)
    assert (kind, field) == ("InvalidData", "data.train[0].path")
    assert "the hub has no data set 'owner/data' that you may read" in message
    assert "give data.train[0].token" in message


@pytest.mark.sampled
@pytest.mark.train
def test_hub_that_is_not_there(tmp_path: Path) -> None:
    given = with_tokenizer(tmp_path, {"source": "hub", "path": "owner/data"})
    kind, field, message = ending(given, tmp_path, hub="")
    assert (kind, field) == ("DataUnavailable", "data.train[0].path")
    assert "the hub cannot be reached for data set 'owner/data'" in message


@pytest.fixture
def rude() -> Iterator[tuple[str, list[int]]]:
    """A hub that hangs up on everybody, and how many came."""
    visits: list[int] = []

    class Rude(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            visits.append(1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Rude) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", visits
        server.shutdown()


@pytest.mark.sampled
@pytest.mark.train
@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_hub_that_does_not_answer_is_asked_a_few_times_and_named(
    tmp_path: Path, rude: tuple[str, list[int]], *, hangs_up: bool
) -> None:
    """The library would ask six times for each file of a model, and wait in between."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    given = launch({"source": "folder", "path": str(tmp_path / "a.jsonl")})
    hub = rude[0] if hangs_up else f"http://127.0.0.1:{closed_port()}"
    kind, field, message = ending(given, tmp_path, hub)
    assert (kind, field) == ("ModelUnavailable", "model.name_or_path")
    assert "if the hub cannot be reached from here" in message
    assert len(rude[1]) == (3 if hangs_up else 0)


@pytest.mark.sampled
@pytest.mark.train
def test_a_data_set_of_a_hub_that_hangs_up(tmp_path: Path, rude: tuple[str, list[int]]) -> None:
    given = with_tokenizer(tmp_path, {"source": "hub", "path": "owner/data"})
    kind, field, message = ending(given, tmp_path, rude[0])
    assert (kind, field) == ("DataUnavailable", "data.train[0].path")
    assert "the hub cannot be reached for data set 'owner/data'" in message
    assert len(rude[1]) == 3


@pytest.mark.train
def test_secret_that_does_not_exist(tmp_path: Path) -> None:
    kind, field, message = ending(with_tokenizer(tmp_path, PRIVATE), tmp_path, hub="")
    assert (kind, field) == ("InvalidSpec", "data.train[0].token")
    assert "there is no secret 'hub-token'" in message


@pytest.mark.sampled
@pytest.mark.train
def test_local_folder_is_not_read_as_a_hub_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE)
    given = with_tokenizer(tmp_path, {"source": "hub", "path": str(tmp_path)})
    kind, field, message = ending(given, tmp_path, hub="")
    assert (kind, field) == ("InvalidSpec", "data.train[0].path")
    assert "use source 'folder'" in message


KEY = """
import pathlib, sys
from trainer_core.data.key import content_key
from trainer_core.errors import TrainerError
from trainer_core.launch import read_launch, read_secrets
try:
    print(content_key(read_launch(pathlib.Path(sys.argv[1])), None, read_secrets()))
except TrainerError as error:
    print(type(error).__name__, error.field, error.message, sep="|")
"""


@pytest.mark.sampled
@pytest.mark.train
def test_key_of_what_the_hub_does_not_have(hub: str, tmp_path: Path) -> None:
    given = launch(PRIVATE)
    said = run_prepare(given, tmp_path, hub, code=KEY, **{"hub-token": "hf_wrong"})
    assert said.startswith("InvalidData|data.train[0].path|data.train[0]: the hub has no data set")
    (tmp_path / "2").mkdir()
    said = run_prepare(given, tmp_path / "2", hub, code=KEY, **{"hub-token": "hf_right"})
    assert said.startswith("ModelUnavailable|model.name_or_path|the hub does not tell the revision")


@pytest.mark.train
def test_labels_of_the_hub_come_by_name_and_images_as_files() -> None:
    """Numbers of a ClassLabel are names, −1 is no label; nothing is decoded on the way."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    from trainer_core.data.hub import as_stored

    features = Features(
        {
            "img": Image(),
            "images": List(Image()),
            "label": ClassLabel(names=["cat", "dog"]),
            "count": Value("int64"),
        }
    )
    stored = {"bytes": b"no image", "path": "a.png"}
    rows = [{"img": stored, "images": [stored], "label": i, "count": 1} for i in (0, 1, -1)]
    dataset = Dataset.from_list(rows, features=features)
    found = list(as_stored(dataset))
    assert [row["label"] for row in found] == ["cat", "dog", None]
    assert found[0]["img"] == stored
    assert found[0]["images"] == [stored]
    assert found[0]["count"] == 1
