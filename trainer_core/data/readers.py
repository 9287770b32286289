"""Reading files row by row, each row with its place; never a whole file in memory."""

import codecs
import csv
import gzip
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from trainer_core.data.jsonstream import Scanner
from trainer_core.data.rows import Place, Row
from trainer_core.data.trees import DAMAGED, HARMLESS, MOST_GROWTH, Beside, Tree
from trainer_core.errors import InvalidData
from trainer_core.json_words import json_problem

Lines = Iterator[tuple[int, str]]
_DELIMITERS = ",;\t|"
_PARQUET_MAGIC = b"PAR1"
_MAX_LINE = 256 << 20
_MOST_AT_ONCE = 64 << 20  # bytes of Parquet rows
_MOST_EMPTY = 100_000  # lines in a row
_MOST_BLANK = 8 << 20  # characters in a row
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))


class File:
    """A file of a source: the spec's field that names it, its path and its shown name.

    With `tree` it is a file of a folder or archive, and `path` its name there.
    """

    def __init__(
        self, field: str, path: Path, name: str | None = None, tree: Tree | None = None
    ) -> None:
        self.field = field
        self.path = path
        self.name = name or path.name
        self._tree = tree
        self._beside = None
        if tree is not None:
            self._beside = Beside(tree, PurePosixPath(path.as_posix()).parent)

    @classmethod
    def of(cls, tree: Tree, name: str) -> "File":
        """A file of a tree."""
        return cls(tree.field, Path(name), name, tree)

    def place(self, number: int, unit: str = "line") -> Place:
        """The place of line (or row) `number`."""
        return Place(self.field, self.name, number, unit, self._beside)

    def open(self) -> IO[bytes]:
        """Its bytes as they are."""
        return self.path.open("rb") if self._tree is None else self._tree.open(self.path.as_posix())

    def packed(self) -> Path | IO[bytes]:
        """What a decompressor opens: a path where there is one, so that it closes it, too."""
        return self.path if self._tree is None else self.open()

    @property
    def size(self) -> int:
        """How many there are."""
        if self._tree is None:
            return self.path.stat().st_size
        return self._tree.size(self.path.as_posix())

    def error(self, message: str) -> InvalidData:
        """An error that names the field and the file."""
        return InvalidData(f"{self.field}: {self.name}{message}", self.field)


def read_file(file: File) -> Iterator[Row]:
    """Rows of a JSONL, JSON, CSV or Parquet file; the first three may be gzipped.

    A line that alone is broken comes out as a Row with its problem. Raises InvalidData, naming
    file and line, for a file that cannot be read on.
    """
    try:
        yield from _READERS[kind_of(file)](file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        kind = "gzip file" if file.path.suffix == ".gz" else "file of its archive"
        raise file.error(f" is a damaged {kind} ({error}): compress it again") from error
    except DAMAGED as error:
        raise file.error(f" is damaged ({error}): pack the archive again") from error
    except OSError as error:
        raise file.error(f" cannot be read: {error.strerror or error}") from error


def kind_of(file: File) -> str:
    """`jsonl`, `json`, `csv` or `parquet`, by the file's extension, else by its first bytes."""
    name = file.path.name.lower().removesuffix(".gz")
    kind = _EXTENSIONS.get(name.rpartition(".")[2])
    if kind in ("csv", "parquet"):
        return kind
    with _open(file) as stream:
        head = stream.read(65536)
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    sniffed = _sniff_json(head)
    found = kind if kind == "jsonl" else sniffed or kind
    if found is None:
        raise file.error(
            " is of an unknown kind: use JSONL, JSON, CSV or Parquet with the extension .jsonl, "
            ".json, .csv or .parquet"
        )
    return found


def is_data_file(path: Path) -> bool:
    """Whether a file of a folder is read as data: by its extension."""
    name = path.name.lower().removesuffix(".gz")
    return name.rpartition(".")[2] in _EXTENSIONS and not path.name.startswith((".", "_"))


def _sniff_json(head: bytes) -> str | None:
    """`json` for an array or an object with more than one line, `jsonl` for an object a line."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return "json"
    if not text.startswith(b"{"):
        return None
    first, _, rest = text.partition(b"\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # A torn first line, or JSON that goes over several lines: an indented object opens alone.
        return "jsonl" if len(first.strip()) > 1 and rest.lstrip().startswith(b"{") else "json"
    return "json" if not rest.strip() and isinstance(value.get("data"), list) else "jsonl"


def _open(file: File) -> IO[bytes]:
    if file.path.name.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(file.packed(), "rb"))
    return file.open()


def _lines(file: File) -> Lines:
    """Decoded lines with their numbers from 1; line ends are kept."""
    offset, empty, most = 0, 0, _most_unpacked(file)
    with _open(file) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE), b""), 1):
            if len(line) >= _MAX_LINE:
                raise file.error(f" line {number} is longer than {_MAX_LINE >> 20} MiB")
            yield number, _decode(file, line, number, offset)
            offset += len(line)
            empty = empty + 1 if len(line) < 3 and line.isspace() else 0
            if offset > most or empty > _MOST_EMPTY:
                raise _bomb(file, number, offset > most)


def _most_unpacked(file: File) -> float:
    """Bytes that a file may unpack to; a file that is not packed is what it is."""
    if not file.path.name.lower().endswith(".gz"):
        return math.inf
    return max(HARMLESS, MOST_GROWTH * file.size)


def _bomb(file: File, line: int, grown: bool) -> InvalidData:  # noqa: FBT001
    if grown:
        return file.error(
            f" unpacks to more than {MOST_GROWTH} times its size: such a file is not read; give "
            "it unpacked if it is meant so"
        )
    return file.error(f" line {line} is the last of very many empty ones: take them out")


def _decode(file: File, line: bytes, number: int, offset: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        place = (number, offset + error.start)
        raise _wrong_encoding(file, line, error.start, place) from error


def _wrong_encoding(file: File, line: bytes, at: int, place: tuple[int, int]) -> InvalidData:
    """The error for byte `at` of a line; `place`: the line's and the byte's number in the file."""
    guess = _guess_encoding(line)
    return file.error(
        f" line {place[0]} is not UTF-8 (byte {place[1]}: 0x{line[at]:02x})"
        f"{f'; it looks like {guess}' if guess else ''}. Convert it: "
        f"iconv -f {guess or 'ENCODING'} -t UTF-8 '{file.name}' > 'utf8-{file.name}'"
    )


def _guess_encoding(line: bytes) -> str | None:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    for encoding in ("cp949", "cp1252"):
        try:
            line.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding.upper()
    return None


def _read_jsonl(file: File) -> Iterator[Row]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        place = file.place(number)
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Row(place, {}, f"it is not valid JSON: {json_problem(error)}")
            continue
        if isinstance(value, dict):
            yield Row(place, value)
        else:
            yield Row(place, {}, f"it is {_json_type(value)} instead of a JSON object")


def _read_json(file: File) -> Iterator[Row]:
    """Elements of a top-level array, or of the array `data` of a top-level object."""
    with _open(file) as stream:
        scanner = Scanner(_decoded_chunks(file, stream))
        try:
            for number, value in scanner.rows():
                if isinstance(value, dict):
                    yield Row(file.place(number), value)
                else:
                    problem = f"it is {_json_type(value)} instead of a JSON object"
                    yield Row(file.place(number), {}, problem)
        except (ValueError, RecursionError) as error:
            raise file.error(
                f" line {scanner.line} is not valid JSON: {_json_reason(error)}. The file must "
                'hold an array of objects, or an object {"data": [...]}'
            ) from error


def _decoded_chunks(file: File, stream: IO[bytes]) -> Iterator[str]:
    """Decoded text in chunks of a megabyte, whatever its lines; errors name line and byte."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    offset, lines, blank, most = 0, 0, 0, _most_unpacked(file)
    while True:
        block = stream.read(1 << 20)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(file, error, lines, offset + len(block)) from error
        if not block:
            return
        offset, lines = offset + len(block), lines + text.count("\n")
        blank = blank + len(text) if text.isspace() else 0
        if offset > most or blank > _MOST_BLANK:
            raise _bomb(file, lines + 1, offset > most)
        yield text


def _not_utf8(file: File, error: UnicodeDecodeError, lines: int, end: int) -> InvalidData:
    """The error for bytes that end at `end` of the file, behind so many whole lines."""
    data, at = bytes(error.object), error.start
    begin = data.rfind(b"\n", 0, at) + 1
    number = lines + data.count(b"\n", 0, at) + 1
    line = data[begin:].partition(b"\n")[0]
    return _wrong_encoding(file, line, at - begin, (number, end - len(data) + at))


def _read_csv(file: File) -> Iterator[Row]:
    delimiter = delimiter_of(file)
    numbered = _lines(file)
    reader = csv.reader((line for _, line in numbered), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for record in reader:
            start, number = reader.line_num + 1, start
            if not record:
                continue
            if header is None:
                header = _header(file, record)
                continue
            yield _csv_row(file.place(number), header, record)
    except csv.Error as error:
        raise file.error(f" line {start} is not valid CSV: {error}") from error


def _header(file: File, record: list[str]) -> list[str]:
    twice = [name for name, count in Counter(record).items() if count > 1]
    if twice:
        raise file.error(f" line 1 names the column '{twice[0]}' twice: rename one")
    return record


def _csv_row(place: Place, header: list[str], record: list[str]) -> Row:
    if len(record) != len(header):
        return Row(
            place,
            {},
            f"it has {len(record)} fields, but the header names {len(header)}: quote fields that "
            "hold the delimiter",
        )
    return Row(place, dict(zip(header, record, strict=True)))


def delimiter_of(file: File) -> str:
    """The delimiter of the header line: the candidate that splits it into most fields."""
    for _, line in _lines(file):
        if line.strip():
            fields = {
                d: len(next(csv.reader([line.rstrip("\r\n")], delimiter=d), []))
                for d in _DELIMITERS
            }
            return max(fields, key=lambda d: fields[d])
    return ","


def _read_parquet(file: File) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with file.open() as opened, pq.ParquetFile(opened) as table:
            for batch in table.iter_batches(batch_size=_rows_at_once(table.metadata)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(file.place(number, "row"), values)
    except MemoryError as error:
        behind = f" behind row {number}" if number else ""
        raise file.error(
            f" needs more memory{behind} than there is: write it with smaller rows"
        ) from error
    except (pa.ArrowException, OSError) as error:
        behind = f" behind row {number}" if number else ""
        reason = str(error).splitlines()[0][:200]
        raise file.error(f" is not a whole Parquet file{behind} ({reason}): write it again") from (
            error
        )


def _rows_at_once(metadata: Any) -> int:
    """256, or fewer where rows are large, as those with images are."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    each = sum(int(group.total_byte_size) for group in groups) // max(int(metadata.num_rows), 1)
    return max(1, min(256, _MOST_AT_ONCE // max(each, 1)))


def _json_reason(error: Exception) -> str:
    """Why a JSON file is none; the scanner's own words, where they are for people."""
    foreign = isinstance(error, RecursionError) or "set_int_max_str_digits" in str(error)
    return json_problem(error) if foreign else str(error)


def _json_type(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


_EXTENSIONS = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "csv",
    "parquet": "parquet",
}
_READERS: dict[str, Callable[[File], Iterator[Row]]] = {
    "jsonl": _read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
