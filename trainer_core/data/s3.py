"""Objects of an S3 store, for runs without the service; credentials are the usual AWS_* ones."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from trainer_core.data.local import Wish, is_read
from trainer_core.data.objects import Glimpsed, Objects, read_objects
from trainer_core.data.readers import File
from trainer_core.data.rows import Row
from trainer_core.data.trees import stays_inside
from trainer_core.errors import DataUnavailable, InvalidData, InvalidSpec

Tree = TypeVar("Tree", bound=Objects)


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

    Always of the versions that are listed first. Raises as `fetch` does; nothing is written to a
    disk.
    """
    yield from read_objects(*_opened(uri, field, Objects), uri, wish)


def files(uri: str, field: str, wish: Wish) -> list[File]:
    """What `read` reads, as files to look into; raises as it does."""
    objects, alone = _opened(uri, field, Glimpsed)
    return objects.files(alone, wish)


def _opened(uri: str, field: str, kind: type[Tree]) -> tuple[Tree, str | None]:
    """What lies at an address, of the versions that are listed now; the name of a single object."""
    told = (uri, f"{field}.path")
    bucket, key = split_uri(*told)
    with _explained(*told):
        client = _client()
        found = {item["Key"]: item for item in _objects(client, bucket, key)}
    prefix = key.rstrip("/") + "/"
    alone = key.rpartition("/")[2] if key in found else None
    items = {n.removeprefix(prefix): o for n, o in found.items() if n.startswith(prefix)}
    if alone is not None:
        items = {alone: found[key]}

    def get(name: str, begin: int, end: int) -> bytes:
        item, span = items[name], f"bytes={begin}-{end - 1}"
        which = {"Bucket": bucket, "Key": item["Key"], "IfMatch": item["ETag"]}
        with _explained(*told):
            body: bytes = client.get_object(**which, Range=span)["Body"].read()
            return body

    sizes = {name: int(item["Size"]) for name, item in items.items()}
    return kind(field, sizes, get), alone


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
