"""The object store on a real S3 server: whole or nothing, checked bytes, keys in their place."""

import hashlib
import os
import secrets
import time
from pathlib import Path

import httpx
import pytest

from app.settings import Settings
from app.storage import (
    ChecksumMismatch,
    InvalidKey,
    ObjectMissing,
    Store,
    StoreUnavailable,
    content_disposition,
    join_key,
)
from tests.services import S3


def store_of(s3: S3, **more: object) -> Store:
    settings = Settings(
        s3_endpoint=s3.endpoint,
        s3_access_key=s3.access_key,
        s3_secret_key=s3.secret_key,
        s3_bucket=s3.bucket,
        s3_region=s3.region,
        **more,
    )
    return Store(settings)


@pytest.fixture
def store(s3: S3) -> Store:
    return store_of(s3)


@pytest.mark.parametrize(
    "parts",
    [
        ("prj", ".."),
        ("prj", "a/../../b"),
        ("prj", ""),
        ("prj", "/etc/passwd"),
        ("prj", "a\\b"),
        ("prj", "a\nb"),
        ("prj", "a\x00"),
        ("prj", "a//b"),
        ("prj", "a/"),
        ("prj", "."),
        ("prj", "가" * 400),
        (),
    ],
)
def test_b33_keys_that_climb_out_are_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidKey):
        join_key(*parts)


def test_keys_keep_korean_names_and_folders() -> None:
    assert join_key("prj", "datasets", "a b/상점.jsonl") == "prj/datasets/a b/상점.jsonl"


def test_small_objects(store: Store) -> None:
    assert store.head("prj/a") is None
    assert store.put_bytes("prj/a", b"one") is True
    assert store.put_bytes("prj/a", b"two", if_absent=True) is False
    assert store.get_bytes("prj/a", 10) == b"one"
    with pytest.raises(ChecksumMismatch, match="3 bytes, at most 2"):
        store.get_bytes("prj/a", 2)
    store.copy("prj/a", "prj/b")
    assert store.head("prj/b") == 3
    store.delete("prj/a")
    store.delete("prj/a")
    with pytest.raises(ObjectMissing, match="prj/a"):
        store.get_bytes("prj/a", 10)


def test_a_big_file_goes_in_parts_and_comes_back_equal(store: Store, tmp_path: Path) -> None:
    content = os.urandom(19 * 2**20 + 7)  # three parts of 8 MiB
    source, target = tmp_path / "모델 파일", tmp_path / "again"
    source.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    seen: list[int] = []
    assert store.put_file("prj/m/모델 파일", source, sha256=digest, progress=seen.append) == digest
    assert seen == sorted(seen)
    assert seen[-1] == len(content)
    assert store.get_file("prj/m/모델 파일", target, size=len(content), sha256=digest) == digest
    assert target.read_bytes() == content
    assert b"".join(store.iterate("prj/m/모델 파일", 5, 2**20)) == content[5 : 2**20]


@pytest.mark.parametrize("size", [10, 9 * 2**20])
def test_a_file_that_is_not_what_was_named_never_appears(
    store: Store, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * size)
    with pytest.raises(ChecksumMismatch):
        store.put_file("prj/f", path, sha256="0" * 64)
    assert store.head("prj/f") is None


def test_a_download_that_is_not_what_was_named_leaves_the_old_file(
    store: Store, tmp_path: Path
) -> None:
    store.put_bytes("prj/f", b"new")
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(ChecksumMismatch):
        store.get_file("prj/f", path, sha256="0" * 64)
    with pytest.raises(ChecksumMismatch):
        store.get_file("prj/f", path, size=4)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_prefixes_are_deleted_only_below_a_project(store: Store) -> None:
    for key in ("prj/jobs/1/a", "prj/jobs/1/b/c", "prj/jobs/10/a"):
        store.put_bytes(key, b"x")
    for prefix in ("", "prj", "prj/", "/", "prj/jobs", "prj/../"):
        with pytest.raises(InvalidKey):
            store.delete_prefix(prefix)
    assert store.delete_prefix("prj/jobs/1/") == 2
    assert [item.key for item in store.list_objects("prj/")] == ["prj/jobs/10/a"]


def test_a_signed_link_works_without_keys_and_only_as_signed(store: Store) -> None:
    store.put_bytes("prj/a b", b"content")
    url = store.presign_get("prj/a b", 60, file_name="결과.txt")
    answer = httpx.get(url, timeout=10)
    assert answer.content == b"content"
    assert "UTF-8''%EA%B2%B0%EA%B3%BC.txt" in answer.headers["Content-Disposition"]
    assert httpx.get(url.replace("a%20b", "a%20c"), timeout=10).status_code == 403


def test_a_signed_link_names_the_public_endpoint(s3: S3) -> None:
    store = store_of(s3, s3_public_endpoint="https://files.example.org")
    assert store.presign_get("prj/a").startswith(f"https://files.example.org/{s3.bucket}/prj/a?")


def test_the_bucket_is_made_once(s3: S3) -> None:
    store = store_of(s3).at(f"made-{secrets.token_hex(4)}")
    store.ensure_bucket()
    store.ensure_bucket()
    assert store.put_bytes("prj/a", b"") is True


def test_wrong_keys_say_what_to_check(s3: S3) -> None:
    settings = Settings(
        s3_endpoint=s3.endpoint, s3_access_key="wrong", s3_secret_key="wrong", s3_bucket=s3.bucket
    )
    with pytest.raises(StoreUnavailable, match="check the S3 keys"):
        Store(settings).put_bytes("prj/a", b"")


def test_a_store_that_is_away_is_said_soon() -> None:
    settings = Settings(s3_endpoint="http://127.0.0.1:9", s3_access_key="a", s3_secret_key="b")
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="does not answer") as error:
        Store(settings).put_bytes("prj/a", b"")
    assert error.value.status == 503
    assert time.monotonic() - begun < 60  # the documented limit of four tries


def test_file_names_survive_headers() -> None:
    header = content_disposition('모델 "1".bin')
    assert header.encode("latin-1")
    assert header.endswith("filename*=UTF-8''%EB%AA%A8%EB%8D%B8%20%221%22.bin")
