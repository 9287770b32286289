"""Folders and zip archives as sources: their files by name, and no way out of them."""

import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from io import RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from trainer_core.data.rows import BadRow
from trainer_core.errors import InvalidData, InvalidSpec

MOST_GROWTH = 200
"""Text is packed to a twentieth or so; what grows more than this was made to."""
HARMLESS = 256 << 20
_MOST_ENTRIES = 1_000_000
_MOST_BYTES = 1 << 40
_MOST_IN_MEMORY = 64 << 20
_IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff"})
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What reading a member of a broken archive raises."""


class Tree(Protocol):
    """Files by their names from the root, with `/` between folders."""

    field: str

    def names(self, is_read: Callable[[str], bool]) -> Sequence[str]:
        """Those files that are read by their names and not hidden, sorted."""

    def open(self, name: str) -> IO[bytes]:
        """One of them, for reading; raises OSError, and for a damaged archive `DAMAGED`."""

    def size(self, name: str) -> int:
        """Its bytes."""


class FolderTree:
    """A folder; links that lead out of it are refused with InvalidSpec where they would be read."""

    def __init__(self, root: Path, field: str) -> None:
        self.field = field
        self._root = root

    def names(self, is_read: Callable[[str], bool]) -> Sequence[str]:
        """Those files that are read by their names and not hidden, sorted."""
        root = self._root.resolve()
        paths = [path for path in self._root.rglob("*") if path.is_file()]
        names = sorted(path.relative_to(self._root).as_posix() for path in paths)
        names = [name for name in names if is_read(name) and not is_hidden(name)]
        for name in names:
            if not (self._root / name).resolve().is_relative_to(root):
                raise InvalidSpec(
                    f"{self.field}.path holds '{name}', a link that leads out of the folder: copy "
                    "the file instead",
                    f"{self.field}.path",
                )
        return names

    def open(self, name: str) -> IO[bytes]:
        """One of them; whoever asks has its name from a row, so links are looked at again."""
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root.resolve()) or not path.is_file():
            raise FileNotFoundError(name)
        return path.open("rb")

    def size(self, name: str) -> int:
        """Its bytes."""
        return (self._root / name).stat().st_size


class ZipTree:
    """A zip archive, read in place: nothing of it is unpacked to a disk.

    Raises InvalidData for one that is damaged, encrypted, too large, packed beyond reason, or
    holds names that climb out, links, or a name twice.
    """

    def __init__(self, file: Path | IO[bytes], size: int, field: str, name: str) -> None:
        self.field = field
        self._name = name
        try:
            self._archive = zipfile.ZipFile(file)
        except (*DAMAGED, OSError, ValueError) as error:
            raise self._error(f" is no whole zip archive ({error}): pack it again") from error
        entries = [entry for entry in self._archive.infolist() if not entry.is_dir()]
        self._check_sizes(entries, size)
        names = [_name_of(entry) for entry in entries]
        for entry, inside in zip(entries, names, strict=True):
            self._check(entry, inside)
        twice = next((inside for inside, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise self._error(f" holds '{_shown(twice)}' twice: keep one")
        self._entries = dict(zip(names, entries, strict=True))

    def names(self, is_read: Callable[[str], bool]) -> Sequence[str]:
        """Those files that are read by their names and not hidden, sorted."""
        return sorted(name for name in self._entries if is_read(name) and not is_hidden(name))

    def open(self, name: str) -> IO[bytes]:
        """One of them; never more bytes than the archive says."""
        if name not in self._entries:
            raise FileNotFoundError(name)
        return self._archive.open(self._entries[name])

    def size(self, name: str) -> int:
        """Its bytes, unpacked."""
        return self._entries[name].file_size

    def _check_sizes(self, entries: Sequence[zipfile.ZipInfo], packed: int) -> None:
        if len(entries) > _MOST_ENTRIES:
            raise self._error(f" holds more than {_MOST_ENTRIES} files: split it")
        total = sum(entry.file_size for entry in entries)
        if total > max(HARMLESS, MOST_GROWTH * packed):
            raise self._error(
                f" unpacks to more than {MOST_GROWTH} times its size: such an archive is not read; "
                "give its files in a folder if it is meant so"
            )
        if total > _MOST_BYTES:
            raise self._error(f" unpacks to more than {_MOST_BYTES >> 40} TiB: split it")

    def _check(self, entry: zipfile.ZipInfo, name: str) -> None:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if not stays_inside(name):
            raise self._error(f" holds '{_shown(name)}', a name that leads out of it: rename it")
        if kind not in (0, stat.S_IFREG):
            raise self._error(
                f" holds '{_shown(name)}', a link or something else that is no file: pack it again "
                "without"
            )
        if entry.flag_bits & 1:
            raise self._error(" is encrypted: pack it without a password")

    def _error(self, message: str) -> InvalidData:
        return InvalidData(f"{self.field}: {self._name}{message}", self.field)


class Beside:
    """What stands beside the rows of a file of a tree: files that rows name from its folder."""

    def __init__(self, tree: Tree, folder: PurePosixPath) -> None:
        self._tree = tree
        self._folder = folder

    def read(self, name: str, column: str) -> bytes:
        """The bytes of a file that a row names in `column`; raises BadRow, also for large ones."""
        inside = (self._folder / name).as_posix()
        if not stays_inside(inside):
            raise BadRow(f"`{column}` is '{_shown(name)}', which leads out of the source")
        if not is_image(inside) or is_hidden(inside):  # others do not count for the content's key
            raise BadRow(
                f"`{column}` names '{_shown(name)}', which is not read: the name of an image ends "
                f"with .{', .'.join(sorted(_IMAGES))}, and no part of it begins with a dot"
            )
        try:
            if self._tree.size(inside) > _MOST_IN_MEMORY:
                raise BadRow(
                    f"`{column}`: '{_shown(name)}' is larger than {_MOST_IN_MEMORY >> 20} MiB"
                )
            with self._tree.open(inside) as file:
                return file.read(_MOST_IN_MEMORY)
        except (FileNotFoundError, KeyError):
            raise BadRow(f"`{column}` names '{_shown(name)}', but there is no such file") from None
        except (OSError, *DAMAGED) as error:
            raise BadRow(f"`{column}`: '{_shown(name)}' cannot be read ({error})") from error


def is_zip(file: IO[bytes] | RawIOBase) -> bool:
    """Whether a file begins as a zip archive does; it is read and closed."""
    with file:
        return file.read(4) in _ZIP_MAGIC


def is_image(name: str) -> bool:
    """Whether a file is an image, by its extension."""
    return name.lower().rpartition(".")[2] in _IMAGES


def is_hidden(name: str) -> bool:
    """Whether a file or a folder around it is hidden, or what macOS puts into archives."""
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _name_of(entry: zipfile.ZipInfo) -> str:
    """The name of a member; some programs write UTF-8 without saying so."""
    try:
        return entry.orig_filename.encode("cp437").decode()
    except UnicodeError:
        return entry.orig_filename


def stays_inside(name: str) -> bool:
    """Whether a name that others have written leads to no place outside of its root."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return False
    return not ("\\" in name or "\0" in name or path.parts[0][1:2] == ":")


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()[:200]
