"""Files into a repository of a hub, in one commit, by the hub's own client.

A push can be done again: what the repository has already is not sent, and a commit that would
change nothing is not made. It lays down exactly the given files: what an earlier push laid beside
them, as its manifest says, is taken away in the same commit. Files of other people stay.

PushFailed    the hub did not take the files; `final` where trying again alone does not help
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from trainer_core.hub_client import use_client
from trainer_core.publish.manifest import MANIFEST, Manifest

LAST_CHECKPOINT = "last-checkpoint/"
_SECONDS = {"connect": 10.0, "read": 300.0, "write": 60.0, "pool": 60.0}
_LARGEST_MANIFEST = 16 * 2**20
_LATER = frozenset({408, 409, 412, 423, 425})
_WHY = {
    401: "it does not know the token: store one that is valid under the same name",
    402: "the account's plan does not suffice",
    403: "the token may not write there: store one with the right to write under the same name",
    404: "there is no such repository or branch for this token, or its owner is another",
}


class PushFailed(Exception):
    """The hub did not take the files.

    `final`: somebody has to change something first. `retry_after`: seconds that the hub asks for.
    """

    def __init__(self, message: str, *, final: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.final = final
        self.retry_after = retry_after


@dataclass(frozen=True)
class Repository:
    """Where to push: the hub's address, `owner/name`, the branch, and a token that may write.

    With `private` a repository that is public is refused.
    """

    endpoint: str
    repo_id: str
    revision: str
    private: bool
    token: str = field(repr=False)


@dataclass(frozen=True)
class File:
    """A file by its path in the repository: on disk, small, or one that can be sought.

    With `sha256` other content is refused.
    """

    path: str
    content: Path | bytes | BinaryIO
    sha256: str | None = None


def push(to: Repository, files: Sequence[File], message: str) -> str:
    """Make these files the newest commit of the branch.

    The repository and the branch are made where they are missing. Returns the commit; one that
    would change nothing is not made, and the newest is returned. Raises PushFailed, and whatever
    reading the files raises.
    """
    with _told(to):
        api = _client(to)
        _make_ready(api, to)
        added = [_added(file) for file in files]
        _send_equal_ones_once(api, to, added)
        done = api.create_commit(
            to.repo_id,
            [*_removed(api, to, files), *added],
            commit_message=message,
            revision=to.revision,
        )
        return str(done.oid)


def _send_equal_ones_once(api: Any, to: Repository, added: Sequence[Any]) -> None:
    """The client would send files of one content at once, all of them from the last one of them:
    one that can only be sought has one place, and several readers would tear it to pieces."""
    different = list({each.upload_info.sha256: each for each in added}.values())
    if len(different) < len(added):
        api.preupload_lfs_files(to.repo_id, different, revision=to.revision, free_memory=False)


def _added(file: File) -> Any:
    from huggingface_hub import CommitOperationAdd

    operation = CommitOperationAdd(file.path, file.content)
    if file.sha256 is not None and operation.upload_info.sha256.hex() != file.sha256:
        raise PushFailed(f"{file.path} is damaged: its sha256 is not the manifest's", final=True)
    return operation


def _removed(api: Any, to: Repository, files: Sequence[File]) -> Iterator[Any]:
    from huggingface_hub import CommitOperationDelete

    for path in _left_over(api, to, {file.path for file in files}):
        yield CommitOperationDelete(path, is_folder=False)


def _client(to: Repository) -> Any:
    """The hub's client, which neither waits for ever nor writes signed addresses to a log."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    class Client(httpx.Client):
        """A client whose every wait is bounded; the library asks for some that are not."""

        def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            given = request.extensions.get("timeout") or {}
            bounded = {name: given.get(name) or most for name, most in _SECONDS.items()}
            request.extensions["timeout"] = bounded
            answer = super().send(request, **options)
            if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                raise _too_many(answer)  # the library would sleep for as long as it is told
            return answer

    use_client(Client)
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return HfApi(endpoint=to.endpoint.rstrip("/"), token=to.token)


def _make_ready(api: Any, to: Repository) -> None:
    api.create_repo(to.repo_id, private=to.private, exist_ok=True)
    if to.private and api.repo_info(to.repo_id).private is False:
        raise PushFailed(
            f"{to.repo_id} is public, and publish.hub.private is true: make it private on the hub,"
            " or set publish.hub.private to false",
            final=True,
        )
    if to.revision != "main":
        api.create_branch(to.repo_id, branch=to.revision, exist_ok=True)


def _left_over(api: Any, to: Repository, new: set[str]) -> list[str]:
    """Files of earlier pushes into the same folders that the new ones do not replace."""
    folders = [folder for folder in ("", LAST_CHECKPOINT) if folder + MANIFEST in new]
    there = _there(api, to, [folder + MANIFEST for folder in folders])
    laid = {
        path
        for folder in folders
        if 0 < there.get(folder + MANIFEST, 0) <= _LARGEST_MANIFEST
        for path in _named_by(_read(to, folder + MANIFEST), folder)
    }
    return sorted(_there(api, to, sorted(laid - new)))


def _there(api: Any, to: Repository, paths: list[str]) -> dict[str, int]:
    """Those of `paths` that the repository has, with their bytes."""
    if not paths:
        return {}
    found = api.get_paths_info(to.repo_id, paths, revision=to.revision)
    return {info.path: info.size for info in found if hasattr(info, "size")}


def _named_by(content: bytes, folder: str) -> Iterator[str]:
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError:  # somebody else's file of that name
        return
    yield from (folder + entry.path for entry in manifest.files)


def _read(to: Repository, path: str) -> bytes:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    address = hf_hub_url(to.repo_id, path, revision=to.revision, endpoint=to.endpoint.rstrip("/"))
    answer = get_session().get(address, headers=build_hf_headers(token=to.token))
    hf_raise_for_status(answer)
    return bytes(answer.content)


# ---- what went wrong ----


_LIBRARIES = frozenset({"builtins", "httpcore", "httpx", "huggingface_hub", "json"})
_STORAGE_SAYS = re.compile(r"<Message>([^<]*)</Message>")


@contextlib.contextmanager
def _told(to: Repository) -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = _cause(error)
        if type(cause).__module__.partition(".")[0] not in _LIBRARIES:
            raise cause from None  # ours, or what reading a file raised
        raise _explained(error, cause, to) from error


def _cause(error: BaseException) -> BaseException:
    """What an upload failed of: the client's threads wrap whatever they meet into another error."""
    while type(error) is RuntimeError and error.__cause__ is not None:
        error = error.__cause__
    return error


def _explained(error: BaseException, cause: BaseException, to: Repository) -> PushFailed:
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    host = urlsplit(to.endpoint).netloc or to.endpoint
    if refused := next((e for e in _causes(cause) if isinstance(e, HfHubHTTPError)), None):
        return _refused(refused, to, host)
    if any(isinstance(each, OfflineModeIsEnabled) for each in _causes(cause)):
        return PushFailed("HF_HUB_OFFLINE is set here: unset it to push", final=False)
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return PushFailed(f"{host} does not take the files: {_short(error)}", final=True)
    said = f"{type(cause).__name__}: {_short(cause)}"
    if isinstance(cause, httpx.HTTPError | json.JSONDecodeError):
        return PushFailed(f"{_asked(cause, to, host)} does not answer ({said})", final=False)
    return PushFailed(f"the push broke off ({said})", final=False)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _asked(error: Any, to: Repository, host: str) -> str:
    """Whom a request went to that nobody answered."""
    request = getattr(error, "_request", None)  # the property raises where there is none
    return host if request is None or _is_the_hub(request, to) else _storage(request)


def _is_the_hub(request: httpx.Request, to: Repository) -> bool:
    return request.url.netloc == httpx.URL(to.endpoint).netloc


def _storage(request: httpx.Request) -> str:
    return f"the hub's storage at {request.url.netloc.decode()}"


def _refused(error: Any, to: Repository, host: str) -> PushFailed:
    status, said = int(error.response.status_code), error.server_message or ""
    if not _is_the_hub(error.response.request, to):
        # It knows signed addresses and no tokens; the next try gets new ones from the hub.
        found = _STORAGE_SAYS.search(said)
        text = f"{_storage(error.response.request)} answered {status}"
        return PushFailed(text + (f": {_short(found[1])}" if found else ""), final=False)
    parts = ": ".join(part for part in (_WHY.get(status, ""), _short(said)) if part)
    return PushFailed(
        f"{host} answered {status} for {to.repo_id}{f': {parts}' if parts else ''}",
        final=400 <= status < 500 and status not in _LATER,
    )


def _too_many(answer: Any) -> PushFailed:
    from huggingface_hub.utils import parse_ratelimit_headers

    limits = parse_ratelimit_headers(answer.headers)
    asked = answer.headers.get("retry-after", "")
    wait = float(asked) if asked.isascii() and asked.isdigit() else None
    if wait is None and limits is not None:
        wait = float(limits.reset_in_seconds)
    host = answer.request.url.netloc.decode()
    return PushFailed(f"{host} takes no more requests for now (429)", final=False, retry_after=wait)


def _short(text: object) -> str:
    return " ".join(str(text).split())[:300]
