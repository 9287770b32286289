"""Too much of everything: long, deep, wide, compressed. Refused in words, in little time."""

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.server import Api

JOB = {
    "task": {"type": "sft"},
    "model": {"name_or_path": "m"},
    "data": {"train": [{"source": "hub", "path": "d"}]},
}
JSON = {"Content-Type": "application/json"}
MIB = 1 << 20


def post(api: Api, body: bytes | str, path: str = "/jobs", **headers: str) -> httpx.Response:
    return api.client.post(path, content=body, headers={**JSON, **headers})


def refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """The problem of a refusal, which is never longer than what a person would read."""
    assert answer.status_code in statuses, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 256 * 1024
    said: dict[str, Any] = answer.json()
    return said


def wide() -> Iterator[Any]:
    """Documents of a megabyte with as many wrong members as fit, at every place for many."""
    many = {f"k{i}": 1 for i in range(80_000)}
    source = JOB["data"]["train"][0]  # type: ignore[index]
    places = {
        "top": {**JOB, **many},
        "labels": {**JOB, "labels": many},
        "columns": {**JOB, "data": {"train": [{**source, "columns": many}]}},
        "sources": {**JOB, "data": {"train": [{**source, "x": 1}] * 15_000}},
        "modules": {**JOB, "adapter": {"type": "lora", "target_modules": [1] * 300_000}},
        "tags": {**JOB, "tracking": {"mlflow": {"tags": many}}},
    }
    yield from (pytest.param(value, id=name) for name, value in places.items())


@pytest.mark.parametrize("document", list(wide()))
def test_a_megabyte_of_wrong_fields_is_one_short_answer(api: Api, document: Any) -> None:
    body = json.dumps(document, separators=(",", ":"))[:MIB]
    said = refused(post(api, body if body.endswith("}") else json.dumps(document)), 413, 422)
    assert len(said["errors"]) <= 51


@pytest.mark.parametrize("name", ["x" * 900_000, "é" * 300_000, "\u202e" * 100_000])
def test_a_name_as_long_as_the_body(api: Api, name: str) -> None:
    refused(post(api, json.dumps({**JOB, name: 1}, ensure_ascii=False)), 422)
    refused(post(api, json.dumps({**JOB, "name": name}, ensure_ascii=False)), 422)
    refused(post(api, json.dumps({**JOB, "labels": {"a": name}}, ensure_ascii=False)), 422)


@pytest.mark.parametrize("depth", [50, 300, 600, 800, 900, 950, 980, 1_500, 100_000])
@pytest.mark.parametrize("kind", ["lists", "objects", "mixed"])
def test_a_document_as_deep_as_it_likes(api: Api, depth: int, kind: str) -> None:
    opening, closing = {"lists": ("[", "]"), "objects": ('{"a":', "}"), "mixed": ('[{"a":', "}]")}[
        kind
    ]
    depth = min(depth, MIB // (len(opening) + len(closing)) - 100)
    deep = opening * depth + "1" + closing * depth
    refused(post(api, deep), 400, 422)
    for field in ("name", "labels", "task", "training", "adapter"):
        refused(post(api, json.dumps(JOB)[:-1] + f', "{field}": {deep}}}'), 400, 422)
    made = api.client.post("/jobs", json=JOB).json()["id"]
    clone = f'{{"overrides": {{"labels": {deep}}}}}'
    refused(post(api, clone, f"/jobs/{made}/clone"), 400, 422)
    once = {"Idempotency-Key": f"{kind}-{depth}"}
    refused(post(api, clone, f"/jobs/{made}/clone", **once), 400, 422)
    refused(post(api, f'{{"labels": {deep}}}', "/datasets"), 400, 415, 422)


@pytest.mark.parametrize(
    "number",
    ["9" * 5_000, "9" * 100_000, "1e400", "-1e400", "1" + "0" * 400 + ".0", "NaN", "1e-400"],
)
def test_numbers_that_are_none(api: Api, number: str) -> None:
    for field in ("priority", "labels"):
        refused(post(api, json.dumps(JOB)[:-1] + f', "{field}": {number}}}'), 400, 422)
    body = json.dumps(JOB)[:-1] + f', "training": {{"learning_rate": {number}}}}}'
    refused(post(api, body), 400, 422)


def test_a_query_with_thousands_of_parameters(api: Api) -> None:
    for count in (90, 6_000):
        many = "&".join(f"par{i}=1" for i in range(count))
        said = refused(api.client.get(f"/jobs?{many}"), 422)
        assert len(said["errors"]) <= 51
    labels = "&".join(f"label.k{i}=v" for i in range(4_000))
    refused(api.client.get(f"/jobs?{labels}"), 422)
    refused(api.client.get("/jobs", params={"q": "x" * 60_000}), 422)
    refused(api.client.get("/jobs", params={"cursor": "x" * 60_000}), 400, 422)
    refused(api.client.get("/jobs", params={"fields": "id," * 10_000}), 422)


def raw(api: Api, request: bytes) -> bytes:
    place = urlsplit(api.url)
    with socket.create_connection((place.hostname, place.port), timeout=30) as client:
        received = b""
        try:
            client.sendall(request)
            while part := client.recv(65536):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return received


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 50_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 10**6 + b"\r\n\r\n",
        b"A" * 10**6,
    ],
    ids=["address", "headers", "header", "method"],
)
def test_heads_that_never_end(api: Api, request_line: bytes) -> None:
    said = raw(api, request_line)
    assert said == b"" or said.startswith(b"HTTP/1.1 4")
    assert api.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: 0x10\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"X-A: b\r\n c: folded\r\n",
        b"X A: b\r\n",
        b": b\r\n",
    ],
)
def test_a_head_that_means_two_things_is_refused(api: Api, headers: bytes) -> None:
    """What a proxy in front would read in another way (request smuggling)."""
    key = f"Authorization: Bearer {api.key}\r\n".encode()
    smuggled = b"GET /jobs?limit=1 HTTP/1.1\r\nHost: x\r\n" + key + b"Connection: close\r\n\r\n"
    request = b"POST /jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + key + headers + b"\r\n"
    said = raw(api, request + b"0\r\n\r\n" + smuggled)
    assert said.count(b"HTTP/1.1 ") <= 1
    assert not said or said.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501"))


def test_a_compressed_body_is_not_unpacked(api: Api) -> None:
    """A thousandfold: what the body limit would let through."""
    body = gzip.compress(b" " * 10**8 + json.dumps(JOB).encode())
    answer = api.client.post("/jobs", content=body, headers={**JSON, "Content-Encoding": "gzip"})
    refused(answer, 400, 415, 422)


# -- data sets --------------------------------------------------------------------------------


def upload(api: Api, name: str, content: bytes) -> httpx.Response:
    query = {"name": "bomb", "file_name": name}
    return api.client.post("/datasets", params=query, content=content, timeout=600)


def packed(block: bytes, times: int) -> bytes:
    """A block as often as said, as gzip: about a thousandth of its length."""
    pack = zlib.compressobj(9, wbits=31)
    return b"".join([*(pack.compress(block) for _ in range(times)), pack.flush()])


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.csv.gz"])
def test_a_compressed_file_of_nothing_that_grows_a_thousandfold(api: Api, name: str) -> None:
    said = refused(upload(api, name, packed(b"\n" * MIB, 1024)), 422)
    assert "very many empty ones" in said["message"]


@pytest.mark.drill
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_value_that_is_the_whole_file(api: Api, name: str) -> None:
    start = b'[{"text": "' if name == "a.json" else b'{"text": "'
    said = refused(upload(api, name, start + b"a" * (300 * MIB)), 422)
    assert "is longer than 256 MiB" in said["message"]


@pytest.mark.parametrize("depth", range(900, 1000, 7))
def test_a_spec_as_deep_as_its_parser_takes_it(api: Api, depth: int) -> None:
    body = '{"task":' + '{"a":' * depth + "1" + "}" * depth + "}"
    answer = api.client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)


def test_an_ending_that_grows_when_it_is_written_small(api: Api) -> None:
    answer = upload(api, "a." + "İ" * 99, b'{"text": "kept"}')
    assert (answer.status_code, answer.json()["rows"]) == (201, 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_rows_as_deep_as_they_like(api: Api, name: str) -> None:
    deep = b'[{"text": ' + b"[" * 200_000 + b"]" * 200_000 + b"}]"
    said = refused(upload(api, name, deep.strip(b"[]") if name == "a.jsonl" else deep), 422)
    assert "nested too deeply" in said["message"]
