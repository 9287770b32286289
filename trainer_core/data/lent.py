"""Sources whose bytes are asked of whoever launched the run: it has the store's keys, we do not.

{"source": "train/0", "name": "rows.jsonl", "begin": 0, "end": 4194304}     a line there
{"size": 4194304}  and as many bytes, or  {"error": "…"}                     and back
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from trainer_core.data.local import Wish
from trainer_core.data.objects import AT_ONCE, Glimpsed, Objects, read_objects
from trainer_core.data.readers import File
from trainer_core.data.rows import Row
from trainer_core.errors import DataUnavailable
from trainer_core.spec import DataSource, Strict
from trainer_core.spec.launch import LentSource

BLOCKS = "blocks"
"""The socket that gives them, in the run's work folder."""


class Block(Strict):
    """Bytes of one object of a source: from `begin` up to, not including, `end`."""

    source: str
    name: str
    begin: int = Field(ge=0)
    end: int = Field(gt=0)


def address_in(folder: int) -> str:
    """The socket's address in an open folder: a whole path may be longer than addresses can be."""
    return f"/proc/self/fd/{folder}/{BLOCKS}"


def read_lent(
    lent: LentSource, key: str, source: tuple[DataSource, str], work: Path, wish: Wish
) -> Iterator[Row]:
    """Rows of a source, read as far as they are asked for; `source` is the spec's, and its field.

    Raises DataUnavailable where nobody gives the bytes.
    """
    spec, field = source
    with closing(_Door(work, spec.path, f"{field}.path")) as door:

        def get(name: str, begin: int, end: int) -> bytes:
            return door.ask(Block(source=key, name=name, begin=begin, end=end))

        objects = Objects(field, {each.name: each.size for each in lent.objects}, get)
        alone = lent.objects[0].name if lent.alone else None
        yield from read_objects(objects, alone, spec.path, wish)


@contextmanager
def lent_files(
    lent: LentSource, key: str, source: tuple[DataSource, str], work: Path, wish: Wish
) -> Iterator[list[File]]:
    """The objects of a source as files to look into, as long as the context lasts."""
    spec, field = source
    with closing(_Door(work, spec.path, f"{field}.path")) as door:

        def get(name: str, begin: int, end: int) -> bytes:
            return door.ask(Block(source=key, name=name, begin=begin, end=end))

        objects = Glimpsed(field, {each.name: each.size for each in lent.objects}, get)
        yield objects.files(lent.objects[0].name if lent.alone else None, wish)


class _Door:
    """A connection to the socket, made with the first question."""

    def __init__(self, work: Path, path: str, field: str) -> None:
        self._work = work
        self._path = path
        self._field = field
        self._file: Any = None

    def ask(self, block: Block) -> bytes:
        """The bytes of a block, all of them."""
        try:
            file = self._opened()
            file.write(block.model_dump_json().encode() + b"\n")
            file.flush()
            answer = json.loads(file.readline() or '{"error": "the connection ended"}')
            data: bytes = file.read(answer.get("size", 0))
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        except ValueError as error:  # half an answer
            raise self._unavailable("the connection ended") from error
        if len(data) != block.end - block.begin:
            raise self._unavailable(answer.get("error", "the connection ended"))
        return data

    def _opened(self) -> Any:
        if self._file is None:
            folder = os.open(self._work, os.O_PATH | os.O_DIRECTORY)
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(address_in(folder))
                    self._file = client.makefile("rwb", AT_ONCE)
            finally:
                os.close(folder)
        return self._file

    def _unavailable(self, reason: str) -> DataUnavailable:
        message = f"{self._field} is '{self._path}', which cannot be read on ({reason})"
        return DataUnavailable(message, self._field)

    def close(self) -> None:
        """Hang up; whoever has hung up before need not hear it."""
        if self._file is not None:
            with suppress(OSError):  # what of a question has not left has nobody to go to
                self._file.close()
