"""The object store in a back-up: every object of the projects and of MLflow, byte for byte."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from polar.backup.archive import CHUNK, Measured
from polar.backup.errors import BackupFailed

TRACKING_PREFIX = "mlflow/"
_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_CHANGED = frozenset({"412", "PreconditionFailed"})
_TRIES = 5
_TRANSFER = TransferConfig(multipart_threshold=16 * CHUNK, max_concurrency=2)


@dataclass(frozen=True)
class StoreAddress:
    """An S3 endpoint with its keys and our bucket."""

    endpoint: str | None
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str
    region: str


@dataclass(frozen=True)
class Item:
    """An object as the store lists it."""

    key: str
    size: int
    etag: str


class Gone(BackupFailed):
    """The object is no longer there, or is another one by now."""


class Bucket:
    """The bucket of an installation; every method raises BackupFailed when it does not answer."""

    def __init__(self, address: StoreAddress) -> None:
        self._name = address.bucket
        self._place = f"object store {address.endpoint or 'AWS S3'}, bucket {address.bucket!r}"
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=address.endpoint,
            aws_access_key_id=address.access_key or None,
            aws_secret_access_key=address.secret_key or None,
            region_name=address.region,
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"mode": "standard", "total_max_attempts": 4},
                s3={"addressing_style": "path" if address.endpoint else "auto"},
            ),
        )

    def list(self, prefix: str) -> Iterator[Item]:
        """Yield the objects below a prefix."""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **token)
            for each in page.get("Contents", ()):
                yield Item(each["Key"], int(each["Size"]), str(each["ETag"]))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, item: Item) -> Iterator[bytes]:
        """Yield an object's content; a broken connection is taken up again where it broke.

        Raises Gone when the object is another one by now.
        """
        start, failures = 0, 0
        while start < item.size:
            before = start
            try:
                for block in self._read(item, start):
                    start += len(block)
                    yield block
            except (BotoCoreError, OSError) as error:
                failures = 1 if start > before else failures + 1
                if failures == _TRIES:
                    raise self._failed(error) from error
                time.sleep(0.5 * failures)

    def _read(self, item: Item, start: int) -> Iterator[bytes]:
        span = f"bytes={start}-{item.size - 1}"
        answer = self._call("get_object", Key=item.key, Range=span, IfMatch=item.etag)
        body = answer["Body"]
        try:
            while block := body.read(CHUNK):
                yield block
        finally:
            body.close()

    def write(self, key: str, blocks: Iterable[bytes]) -> None:
        """Write an object of any size."""
        try:
            self._client.upload_fileobj(Measured(blocks), self._name, key, Config=_TRANSFER)
        except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error) as error:
            raise self._failed(error) from error

    def _call(self, operation: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, operation)(Bucket=self._name, **arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if "Key" in arguments and code in _MISSING | _CHANGED:
                raise Gone(f"{arguments['Key']} is not, or no longer, in the store") from error
            raise self._failed(error) from error
        except BotoCoreError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BackupFailed:
        return BackupFailed(f"{self._place}: {error}")
