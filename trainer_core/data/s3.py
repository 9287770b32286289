"""Objects of an S3 store, for runs without the service; credentials are the usual AWS_* ones."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from trainer_core.data.local import Wish, is_read, read_tree
from trainer_core.data.readers import File, read_file
from trainer_core.data.rows import Row
from trainer_core.data.trees import is_hidden, stays_inside
from trainer_core.errors import DataUnavailable, InvalidData, InvalidSpec

_AT_ONCE = 4 << 20  # bytes that one request asks for


def split_uri(uri: str, field: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; raises InvalidSpec for anything else."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket or not key:
        raise InvalidSpec(
            f"{field} is '{uri}', which is not of the form s3://bucket/key: give such an address",
            field,
        )
    return bucket, key


def fetch(uri: str, field: str, cache: Path, *, images: bool = False) -> Path:
    """Download an object, or all data files below a prefix, to `cache`; returns file or folder.

    With `images` those too, and all in the folders that their keys name. Raises InvalidData where
    there is nothing, DataUnavailable where the store cannot be reached.
    """
    bucket, key = split_uri(uri, f"{field}.path")
    with _explained(uri, f"{field}.path"):
        client = _client()
        keys = _keys(client, bucket, key)
        if key in keys:
            return _download(client, bucket, key, cache / Path(key).name)
        prefix = key.rstrip("/") + "/"
        below = [k for k in keys if k.startswith(prefix) and is_read(k, images=images)]
        for number, name in enumerate(below):
            # Keys may hold anything, also `..`: only their last part becomes a file's name.
            inside = f"{number:05d}/{Path(name).name}"
            if images:
                inside = _inside(name.removeprefix(prefix), field)
            _download(client, bucket, name, cache / "files" / inside)
    if not below:
        raise InvalidData(f"{field}: there is no data file at '{uri}'", f"{field}.path")
    return cache / "files"


def read(uri: str, field: str, wish: Wish) -> Iterator[Row]:
    """Rows of an object, or of all data files below a prefix, read as far as they are asked for.

    Raises as `fetch` does; nothing is written to a disk.
    """
    tree = _Objects(uri, field)
    if tree.alone is not None:
        if tree.alone.lower().endswith(".zip"):
            raise InvalidData(
                f"{field}: '{uri}' is an archive, which cannot be streamed: unpack it, or leave"
                " data.streaming out",
                f"{field}.path",
            )
        yield from read_file(File.of(tree, tree.alone))
    else:
        yield from read_tree(tree, f"place '{uri}'", wish)


class _Objects:
    """Objects at or below an address as files; `alone` is the name of a single one."""

    def __init__(self, uri: str, field: str) -> None:
        self.field = field
        self._uri = uri
        self._bucket, key = split_uri(uri, f"{field}.path")
        with _explained(uri, f"{field}.path"):
            self._client = _client()
            found = {item["Key"]: item for item in _objects(self._client, self._bucket, key)}
        prefix = key.rstrip("/") + "/"
        self.alone = key.rpartition("/")[2] if key in found else None
        self._items = {n.removeprefix(prefix): o for n, o in found.items() if n.startswith(prefix)}
        if self.alone is not None:
            self._items = {self.alone: found[key]}

    def names(self, is_read: Callable[[str], bool]) -> Sequence[str]:
        """Those that are read by their names and not hidden, sorted."""
        return sorted(name for name in self._items if is_read(name) and not is_hidden(name))

    def open(self, name: str) -> IO[bytes]:
        """One of them, for reading from anywhere."""
        item = self._items[name]
        opened = _Opened(self._client, self._bucket, item, (self._uri, f"{self.field}.path"))
        return cast("IO[bytes]", io.BufferedReader(opened, _AT_ONCE))

    def size(self, name: str) -> int:
        """Its bytes."""
        return int(self._items[name]["Size"])


class _Opened(io.RawIOBase):
    """An object that is read block by block, always of the version that was listed."""

    def __init__(
        self, client: Any, bucket: str, item: dict[str, Any], told: tuple[str, str]
    ) -> None:
        self._get = client.get_object
        self._which = {"Bucket": bucket, "Key": item["Key"], "IfMatch": item["ETag"]}
        self._size = int(item["Size"])
        self._told = told
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes: Parquet files are read from their ends."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte; returns its number."""
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        """The number of the next byte."""
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fetch the next bytes; 0 at the end."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size)
        if end <= self._at:
            return 0
        with _explained(*self._told):
            answer = self._get(**self._which, Range=f"bytes={self._at}-{end - 1}")
            data = answer["Body"].read()
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _inside(name: str, field: str) -> str:
    """The name of a file in a folder; raises InvalidData for one that might leave it."""
    if not stays_inside(name):
        raise InvalidData(f"{field}: the key '{name[:200]}' leads out of its folder", field)
    return name


def etags(uri: str, field: str) -> list[list[str]]:
    """Key and ETag of each object at or below an address: what changes with their content."""
    bucket, key = split_uri(uri, f"{field}.path")
    with _explained(uri, f"{field}.path"):
        return [[item["Key"], item["ETag"]] for item in _objects(_client(), bucket, key)]


@contextmanager
def _explained(uri: str, field: str) -> Iterator[None]:
    import botocore.exceptions  # noqa: PLC0415

    try:
        yield
    except botocore.exceptions.ClientError as error:
        code = error.response["Error"]["Code"]
        if code in ("NoSuchBucket", "NoSuchKey", "404"):
            raise InvalidData(f"{field} is '{uri}', but there is no such object", field) from error
        raise InvalidData(
            f"{field} is '{uri}', which the store refuses to give ({code}): check the AWS_* "
            "credentials",
            field,
        ) from error
    except botocore.exceptions.BotoCoreError as error:
        raise DataUnavailable(
            f"{field} is '{uri}', which cannot be reached ({error}): check AWS_ENDPOINT_URL_S3 "
            "and the AWS_* credentials",
            field,
        ) from error


def _client() -> Any:
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    config = Config(connect_timeout=10, read_timeout=60, retries={"total_max_attempts": 3})
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    # A session of its own: the default one remembers credentials that may have changed.
    return boto3.Session().client("s3", region_name=region, config=config)


def _objects(client: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item for page in pages for item in page.get("Contents", ())]


def _keys(client: Any, bucket: str, prefix: str) -> list[str]:
    return [item["Key"] for item in _objects(client, bucket, prefix)]


def _download(client: Any, bucket: str, key: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    client.download_file(bucket, key, str(path))
    return path
