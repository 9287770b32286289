"""One push to a hub, in a process of its own: hours and gigabytes, and it may be killed any time.

What is to be done comes as JSON on stdin, with the token; how it ended goes to stdout, without it.
It talks to the store and the hub, never to Postgres: whoever started it holds the lease.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from pydantic import BaseModel, SecretStr

from app.artifacts.manifest import read_manifest
from app.object_file import open_object
from app.storage import ChecksumMismatch, ObjectMissing, Store, StoreUnavailable, get_store
from trainer_core.publish.hub import LAST_CHECKPOINT, File, PushFailed, Repository, push
from trainer_core.publish.hub_files import (
    goes_with_a_checkpoint,
    goes_with_the_model,
    is_of_the_model,
)
from trainer_core.publish.manifest import MANIFEST, Manifest
from worker.redact import Redactor


class PushOrder(BaseModel):
    """What is to be pushed where; `whole`: a checkpoint's every file, in a folder of its own."""

    endpoint: str
    repo_id: str
    revision: str
    private: bool
    token: SecretStr
    kind: Literal["checkpoint", "model"]
    whole: bool
    prefix: str
    manifest_sha256: str
    message: str


class PushResult(BaseModel):
    """The commit, or why there is none; `final` where trying again alone does not help."""

    commit: str | None = None
    message: str | None = None
    final: bool = False
    retry_after: float | None = None


def carry_out(order: PushOrder, objects: Store) -> PushResult:
    """Push what the order names; nothing that is returned holds the token."""
    token = order.token.get_secret_value()
    to = Repository(order.endpoint, order.repo_id, order.revision, order.private, token)
    try:
        return PushResult(commit=push(to, list(_files(order, objects)), order.message))
    except PushFailed as failed:
        said = Redactor([token]).text(failed.message)
        return PushResult(message=said, final=failed.final, retry_after=failed.retry_after)
    except (ObjectMissing, ChecksumMismatch) as gone:
        message = f"its files are not in the store any more as they were: {gone}"
        return PushResult(message=message, final=True)
    except StoreUnavailable as away:
        return PushResult(message=str(away))
    except Exception as error:  # noqa: BLE001 - this process's one; whoever waits is told
        said = f"the push broke off ({type(error).__name__}: {error})"
        return PushResult(message=Redactor([token]).text(said)[:500])


def _files(order: PushOrder, objects: Store) -> Iterator[File]:
    manifest = read_manifest(objects, order.prefix, order.manifest_sha256)
    if order.kind == "model":
        leaves = partial(goes_with_the_model, private=order.private)
        yield from _folder(objects, order, manifest, leaves, "")
        return
    yield from _folder(objects, order, manifest, is_of_the_model, "")
    if order.whole:
        yield from _folder(objects, order, manifest, goes_with_a_checkpoint, LAST_CHECKPOINT)


def _folder(
    objects: Store, order: PushOrder, manifest: Manifest, leaves: Callable[[str], bool], place: str
) -> Iterator[File]:
    """The files that leave, and a manifest that names them: the folder's own if all of them do."""
    kept = [entry for entry in manifest.files if leaves(entry.path)]
    for entry in kept:
        content = open_object(objects, order.prefix + entry.path)
        yield File(place + entry.path, content, entry.sha256)
    if kept == manifest.files:
        own = open_object(objects, order.prefix + MANIFEST)
        yield File(place + MANIFEST, own, order.manifest_sha256)
    else:
        shown = manifest.model_copy(update={"files": kept})
        yield File(place + MANIFEST, shown.model_dump_json(indent=1).encode())


def main(arguments: Sequence[str]) -> int:
    """Carry out the order on stdin; 0 whatever came of it, for the answer says it."""
    del arguments
    order = PushOrder.model_validate_json(sys.stdin.buffer.read())
    result = carry_out(order, get_store())
    sys.stdout.write(result.model_dump_json())
    sys.stdout.flush()
    return 0
