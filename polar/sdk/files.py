"""Downloads that appear when they are whole, and uploads that go on where they broke."""

import hashlib
import secrets
import time
from base64 import b64encode
from errno import EISDIR
from pathlib import Path
from typing import BinaryIO

import httpx

from polar.sdk import answers
from polar.sdk.calls import (
    LONG_TIMEOUT,
    Call,
    Course,
    Pause,
    Receive,
    Tries,
    check,
    nothing,
    part,
)
from polar.sdk.errors import ApiError, Corrupt, ServerError, Unreachable, Waited, refusal
from polar.sdk.sending import utf8

PIECE = 8 * 2**20  # bytes of a PATCH: a block of the store
ARCHIVE = "application/x-tar"
CHECKED_WITHIN = 3600.0  # seconds that a whole upload may be looked through
_LOOK_EVERY = 1.0
_BROKEN = ("offset_mismatch", "broken_off", "checksum_mismatch")


class Draft:
    """A file on its way: it has another name until it is whole, and goes on after a break.

    Without a `sha256` the answer has to say it, unless it is of the `kind` that has none. Raises
    IsADirectoryError where `target` is a folder.
    """

    def __init__(self, target: Path, sha256: str | None = None, kind: str | None = None) -> None:
        if target.is_dir():
            raise IsADirectoryError(EISDIR, "is a folder, name the file as well", str(target))
        self.target, self._sha256, self._kind = target, sha256, kind
        # Of its own: two at once to one target would write into one another.
        self.path = target.with_name(f".{secrets.token_hex(8)}.part")
        self.size, self.tag = 0, ""
        self._expected, self._hash = "", hashlib.sha256()
        self._file: BinaryIO | None = None

    def request(self, path: str, query: dict[str, str | None]) -> Call[None]:
        """Return the request for all that is not here yet."""
        headers = {"Accept-Encoding": "identity"}
        if self.size and self.tag:
            headers |= {"Range": f"bytes={self.size}-", "If-Range": self.tag}
        return Call(method="GET", path=path, query=query, headers=headers, read=nothing)

    def begin(self, answer: httpx.Response) -> None:
        """Go on behind what is here, or begin again where the answer is the whole file.

        Raises Unreachable for an answer that is none of POLAR's: the page of a proxy, say.
        """
        self._expected = self._sha256 or answer.headers.get("X-Checksum-Sha256", "")
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if not (kind == self._kind if self._kind else self._expected):
            told = f"{self.target.name} is answered, but not as POLAR does ({kind or 'no type'})"
            raise Unreachable(f"{told}: look at the service's URL")
        if answer.status_code != httpx.codes.PARTIAL_CONTENT or self._file is None:
            self.close()
            self.size, self._hash = 0, hashlib.sha256()
            self._file = self.path.open("wb")
        self.tag = answer.headers.get("ETag", "")

    def write(self, block: bytes) -> None:
        """Take what came."""
        if self._file is not None:
            self._file.write(block)
            self._hash.update(block)
            self.size += len(block)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def finish(self) -> Path:
        """Give the file its name; raises Corrupt when it is not what its checksum says."""
        self.close()
        found = self._hash.hexdigest()
        if self._expected and found != self._expected:
            told = f"sha256 {found} came, {self._expected} was announced"
            raise Corrupt(f"{self.target.name}: {told}")
        return self.path.replace(self.target)


def download(path: str, target: Path, sha256: str | None = None) -> Course[Path]:
    """Download to `target`, which appears only when it is whole and its sha256 is right.

    A download that broke off goes on where it broke. Raises ApiError, Unreachable and Corrupt.
    """
    return _download(path, {}, Draft(target, sha256))


def download_archive(path: str, target: Path, kind: str | None = None) -> Course[Path]:
    """Download a tar file of a job's files, or those of one kind, or of a model.

    It is made on its way, so that it has no sha256: `target` appears when all of it has come.
    """
    return _download(path, {"kind": kind}, Draft(target, kind=ARCHIVE))


def _download(path: str, query: dict[str, str | None], draft: Draft) -> Course[Path]:
    draft.target.parent.mkdir(parents=True, exist_ok=True)
    tries = Tries(again=True)
    furthest = 0
    try:
        while True:
            try:
                check((yield Receive(draft.request(path, query), draft)))
                return draft.finish()
            except (Unreachable, ApiError) as error:
                if draft.size > furthest:  # it goes on: patience is for what stands still
                    furthest = draft.size
                    tries = Tries(again=True)
                wait = tries.pause_after(error)
            yield Pause(wait)
    finally:
        draft.close()
        draft.path.unlink(missing_ok=True)


def checksum(file: Path) -> str:
    """Return the file's sha256 in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def begin_upload(name: str, file_name: str, length: int, sha256: str) -> Call[answers.UploadOut]:
    """Announce an upload; one whose answer is lost is forgotten after a day."""
    said = {"name": name, "filename": file_name, "sha256": sha256}
    pairs = [f"{key} {b64encode(utf8(value, key)).decode()}" for key, value in said.items()]
    return Call(
        method="POST",
        path="/uploads",
        headers={"Upload-Length": str(length), "Upload-Metadata": ",".join(pairs)},
        read=lambda answer: answers.UploadOut.model_validate_json(answer.content),
        again=True,
    )


def get_upload(upload_id: str) -> Call[answers.UploadOut]:
    """Ask where an upload stands."""
    return Call(
        method="GET",
        path=f"/uploads/{part(upload_id)}",
        read=lambda answer: answers.UploadOut.model_validate_json(answer.content),
    )


def send_piece(upload_id: str, offset: int, content: bytes) -> Call[int]:
    """Send bytes from `offset` on; returns how many are there now."""
    digest = b64encode(hashlib.sha256(content).digest()).decode()
    return Call(
        method="PATCH",
        path=f"/uploads/{part(upload_id)}",
        headers={
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Checksum": f"sha256 {digest}",
        },
        content=content,
        read=lambda answer: int(answer.headers["Upload-Offset"]),
        timeout=LONG_TIMEOUT,
        again=False,  # where it goes on is asked first
    )


def send_upload(upload: answers.UploadOut, file: Path) -> Course[answers.UploadOut]:
    """Send what is missing of an upload until it is a data set.

    Raises ApiError where the data are refused, Unreachable after a minute without progress, and
    Waited when they are looked through for more than an hour.
    """
    tries = Tries(again=True)
    with file.open("rb") as content:
        while upload.status == "receiving":
            content.seek(upload.offset)
            try:
                data = content.read(PIECE)
                if not data and upload.offset < upload.length:
                    told = f"{file} ends at byte {upload.offset} of {upload.length}"
                    raise Corrupt(f"{told} that were announced: send the same file")
                piece = send_piece(upload.id, upload.offset, data)
                offset = _beyond(upload, (yield from piece))
                tries = Tries(again=True)
                if offset < upload.length:
                    upload = upload.model_copy(update={"offset": offset})
                    continue
            except (Unreachable, ApiError) as error:
                if not _goes_on(error):
                    raise
                yield Pause(tries.pause_after(_repeatable(error)))
            upload = yield from get_upload(upload.id)
    return (yield from _checked(upload))


def _beyond(upload: answers.UploadOut, offset: int) -> int:
    """Return how many bytes are there; raises Unreachable where a piece has added none."""
    if offset <= upload.offset < upload.length:
        raise Unreachable(f"upload {upload.id} stays at byte {offset} of {upload.length}")
    return offset


def _goes_on(error: Unreachable | ApiError) -> bool:
    """Say whether asking for the offset can help."""
    if isinstance(error, Unreachable):
        return True
    return isinstance(error, ServerError) or error.code in _BROKEN


def _repeatable(error: Unreachable | ApiError) -> Unreachable:
    return error if isinstance(error, Unreachable) else Unreachable(str(error))


def _checked(upload: answers.UploadOut) -> Course[answers.UploadOut]:
    began = time.monotonic()
    while upload.status == "checking":
        if time.monotonic() - began > CHECKED_WITHIN:
            raise Waited(f"upload {upload.id} is looked through for over {CHECKED_WITHIN:.0f} s")
        yield Pause(_LOOK_EVERY)
        upload = yield from get_upload(upload.id)
    if upload.problem is not None:
        problem = upload.problem
        raise refusal(problem.status, problem.model_dump())
    return upload


def inside(folder: Path, path: str) -> Path:
    """Return where a file of this path goes; raises Corrupt for one that leaves the folder."""
    target = folder / path
    if not target.resolve().is_relative_to(folder.resolve()):
        raise Corrupt(f"{path!r} would lie outside of {folder}")
    return target
