"""A back-up as one thing on disk: a folder, or one tar file. Its manifest is written last.

While it is written it has another name, so whatever carries the name that was asked for is whole.
"""

import fcntl
import glob
import hashlib
import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from pydantic import ValidationError

from polar.backup.errors import BackupFailed, Damaged
from polar.backup.manifest import MANIFEST, SEAL, Entry, Manifest

CHUNK = 1 << 20
_LONGEST_MANIFEST = 2**31
_NAMED = 60  # characters of a back-up's name that its draft carries: names have 255 bytes


class Measured(io.RawIOBase):
    """Blocks as a file that counts and hashes what is read from it."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        super().__init__()
        self._blocks = filter(None, blocks)
        self._left = b""
        self._digest = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        """Say yes: boto3 asks."""
        return True

    @property
    def sha256(self) -> str:
        """The hash of what was read."""
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes (-1: all that is left); fewer only at the end."""
        parts, missing = [], size if size >= 0 else 2**63
        while missing > 0:
            self._left = self._left or next(self._blocks, b"")
            if not self._left:
                break
            parts.append(self._left[:missing])
            self._left = self._left[missing:]
            missing -= len(parts[-1])
        data = b"".join(parts)
        self._digest.update(data)
        self.size += len(data)
        return data

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to read."""
        self._left = self._left or next(self._blocks, b"")
        return not self._left


class Writer(Protocol):
    """Takes the files of a back-up one after the other."""

    def write(self, name: str, size: int, content: Measured) -> None:
        """Write a file of exactly `size` bytes."""
        ...

    def close(self) -> None:
        """Have everything on disk."""
        ...


class FolderWriter:
    """A back-up as a folder of mode 700."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(mode=0o700)

    def write(self, name: str, size: int, content: Measured) -> None:
        """Write a file and sync it."""
        del size
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            shutil.copyfileobj(content, file, CHUNK)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Sync the folders."""
        for folder in (self._path, *(each for each in self._path.rglob("*") if each.is_dir())):
            sync_folder(folder)


class TarWriter:
    """A back-up as one tar file of mode 600."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.TarFile(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)

    def write(self, name: str, size: int, content: Measured) -> None:
        """Append a file."""
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, 0o600
        self._tar.addfile(header, content)

    def close(self) -> None:
        """End the archive and sync it."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class Draft:
    """A back-up that is being written: files first, then the manifest."""

    def __init__(self, writer: Writer, scratch: Path) -> None:
        self._writer = writer
        self.scratch = scratch  # a folder for what is on its way into it
        self.files: list[Entry] = []

    def add(self, name: str, size: int, blocks: Iterable[bytes], key: str | None = None) -> Entry:
        """Add a file of `size` bytes; raises BackupFailed when `blocks` are more or fewer."""
        content = Measured(blocks)
        try:
            self._writer.write(name, size, content)
            whole = content.size == size and content.exhausted
        except OSError as error:
            if error.errno is not None:
                raise
            whole = False  # tarfile's way to say that the content ended too early
        if not whole:
            raise BackupFailed(f"{key or name} changed while it was read; take the back-up again")
        entry = Entry(file=name, size=size, sha256=content.sha256, key=key)
        self.files.append(entry)
        return entry

    def add_bytes(self, name: str, data: bytes) -> Entry:
        """Add a small file."""
        return self.add(name, len(data), [data])

    def add_file(self, name: str, path: Path) -> Entry:
        """Add a file of the disk."""
        with path.open("rb") as file:
            return self.add(name, os.fstat(file.fileno()).st_size, blocks_of(file))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and its hash: the back-up is whole."""
        data = manifest.model_dump_json(indent=1).encode()
        seal = f"{hashlib.sha256(data).hexdigest()}\n".encode()
        for name, content in ((MANIFEST, data), (SEAL, seal)):
            self._writer.write(name, len(content), Measured([content]))
        self._writer.close()


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's content in blocks."""
    while block := file.read(CHUNK):
        yield block


@contextmanager
def drafted(target: Path) -> Iterator[Draft]:
    """Write a back-up that appears at `target` when the block ends well; nothing is left else.

    A name that ends with `.tar` makes one file, every other one a folder. Raises BackupFailed when
    there is something already.
    """
    target = target.absolute()
    if is_there(target):
        raise BackupFailed(f"{target} exists already; name a new file or folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(target)
    writer = TarWriter if target.suffix == ".tar" else FolderWriter
    with _working_folder(target) as folder:
        draft = folder / "draft"
        yield Draft(writer(draft), folder)
        draft.replace(target)
        sync_folder(target.parent)


def is_there(target: Path) -> bool:
    """Say whether something is at `target`; an empty folder is nothing."""
    return target.exists() and not (target.is_dir() and not any(target.iterdir()))


@contextmanager
def _working_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target` that is locked as long as the block lasts."""
    folder = target.with_name(f".{target.name[:_NAMED]}.{secrets.token_hex(4)}.partial")
    try:
        folder.mkdir(mode=0o700)
        with _lock_on(folder):
            yield folder
    finally:
        remove(folder)


def remove_drafts(target: Path) -> None:
    """Remove what killed back-ups to this target have left: nobody holds their locks."""
    name = glob.escape(target.name[:_NAMED])
    for left in target.parent.glob(f".{name}.????????.partial"):
        with suppress(OSError), _lock_on(left):
            remove(left)


@contextmanager
def _lock_on(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; raises OSError when someone else does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Archive:
    """A whole back-up, to be read.

    Raises Damaged when it has no manifest, or not the one that was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places = _places(path)
        self.manifest = self._manifest()

    def _manifest(self) -> Manifest:
        if MANIFEST not in self._places or SEAL not in self._places:
            raise Damaged(f"{self._path} is no whole back-up: it has no {MANIFEST} with its {SEAL}")
        data = b"".join(self._blocks(MANIFEST, _LONGEST_MANIFEST))
        seal = b"".join(self._blocks(SEAL, 100)).decode(errors="replace").strip()
        if hashlib.sha256(data).hexdigest() != seal:
            raise Damaged(f"{MANIFEST} of {self._path} is damaged: its sha256 is not {SEAL}'s")
        try:
            return Manifest.model_validate_json(data)
        except ValidationError as error:
            raise BackupFailed(
                f"the back-up has a format that this version does not know: {error.errors()[0]}"
            ) from error

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file's content; raises Damaged at its end when that is not what was written."""
        digest = hashlib.sha256()
        for block in self._blocks(entry.file, entry.size):
            digest.update(block)
            yield block
        if digest.hexdigest() != entry.sha256:
            raise Damaged(f"{entry.name} is damaged: its sha256 is not the manifest's")

    def check(self, entry: Entry) -> str | None:
        """Say what is wrong with a file; None when it is whole."""
        if entry.file not in self._places:
            return f"{entry.name} is missing"
        if (size := self._places[entry.file][2]) != entry.size:
            return f"{entry.name} has {size} bytes, {entry.size} were written"
        try:
            for _ in self.read(entry):
                pass
        except Damaged as error:
            return str(error)
        except OSError as error:
            return f"{entry.name} cannot be read: {error.strerror}"
        return None

    def _blocks(self, name: str, limit: int) -> Iterator[bytes]:
        path, offset, size = self._places[name]
        left = min(size, limit)
        with path.open("rb") as file:
            file.seek(offset)
            while left and (block := file.read(min(CHUNK, left))):
                left -= len(block)
                yield block


Place = tuple[Path, int, int]
"""The file that holds it, where it begins there, and how many bytes it has."""


def _places(path: Path) -> dict[str, Place]:
    if path.is_dir():
        files = (each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
        return {each.relative_to(path).as_posix(): (each, 0, each.stat().st_size) for each in files}
    if not path.is_file():
        raise BackupFailed(f"there is no back-up at {path}")
    try:
        with tarfile.open(path, "r:") as tar:
            return {each.name: (path, each.offset_data, each.size) for each in tar if each.isfile()}
    except tarfile.TarError as error:
        raise Damaged(f"{path} is damaged, or no back-up: {error}") from error
