"""Manifests: a folder with a `manifest.json` is whole, because the manifest is written last."""

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

MANIFEST = "manifest.json"
Kind = Literal["checkpoint", "model", "prepared"]
_FILES_AT_ONCE = 4  # hashing lets other threads run, and disks take several files at a time


class FileEntry(BaseModel):
    """One file of a folder; `path` is relative to it, with `/`."""

    model_config = ConfigDict(extra="forbid")

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\\" in path:
            raise ValueError("a path of a manifest stays inside of its folder")
        return path


class Manifest(BaseModel):
    """What a whole folder holds, and which spec and data it came from."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    kind: Kind
    step: int = Field(ge=0)
    files: list[FileEntry]
    spec_hash: str
    data_hash: str
    created: datetime

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)


class BrokenFolder(Exception):
    """A folder is not what its manifest says; the message names the file."""


def write_manifest(folder: Path, kind: Kind, step: int, hashes: tuple[str, str]) -> Manifest:
    """Hash every file of `folder`, then write its manifest last.

    `hashes` are (spec_hash, data_hash). Returns the manifest. The folder is whole whatever becomes
    of this process; `make_durable` makes it outlast the machine's power.
    """
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        files = [*pool.map(partial(_entry, folder), _files(folder))]
    manifest = Manifest(
        kind=kind,
        step=step,
        files=files,
        spec_hash=hashes[0],
        data_hash=hashes[1],
        created=datetime.now(UTC),
    )
    temporary = folder / f".{MANIFEST}.tmp"
    temporary.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    temporary.replace(folder / MANIFEST)
    return manifest


def make_durable(folder: Path) -> None:
    """Fsync every file of `folder` and its folders; raises OSError where the disk refuses."""
    found = [*folder.rglob("*")]
    files = [path for path in found if path.is_file()]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for _ in pool.map(_sync_file, files):
            pass
    for each in (folder, *(path for path in found if path.is_dir())):
        sync_folder(each)


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of `folder`; raises BrokenFolder where there is none, or no valid one."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise BrokenFolder(f"{folder} has no {MANIFEST}: it was never finished") from error
    except ValidationError as error:
        raise BrokenFolder(f"{folder / MANIFEST} is not a manifest") from error


def verify(folder: Path) -> Manifest:
    """Check sizes and sha256 of every file against the manifest; raises BrokenFolder."""
    manifest = read_manifest(folder)
    for entry in manifest.files:
        path = folder / entry.path
        if not path.is_file():
            raise BrokenFolder(f"{path} is missing")
        if path.stat().st_size != entry.size:
            raise BrokenFolder(f"{path} has {path.stat().st_size} bytes instead of {entry.size}")
        if sha256_file(path) != entry.sha256:
            raise BrokenFolder(f"{path} is damaged: its sha256 is not the manifest's")
    return manifest


def sha256_file(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_hash(value: object) -> str:
    """sha256 over the canonical JSON (sorted keys, no spaces) of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that it is either the old one or the whole new one, also after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that renames inside of it survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            yield path


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _entry(folder: Path, path: Path) -> FileEntry:
    relative = path.relative_to(folder).as_posix()
    return FileEntry(path=relative, size=path.stat().st_size, sha256=sha256_file(path))
