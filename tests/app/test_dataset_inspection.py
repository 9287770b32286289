"""What the inspection of an upload finds, and what it refuses."""

import contextlib
import gzip
import io
import json
import zipfile
from pathlib import Path

import pytest

from app.datasets.inspection import Inspection, inspect
from app.datasets.parquet import BrokenParquet, read_footer
from app.datasets.preview import suffix_of

ROWS = [
    {"instruction": "환불하려면?", "output": "주문 내역에서 신청하세요."},
    {"instruction": "Opening hours?", "output": "Nine to six."},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def look(folder: Path, file_name: str, content: bytes) -> Inspection:
    path = folder / f"upload{suffix_of(file_name)}"
    path.write_bytes(content)
    return inspect(path, file_name)


@pytest.mark.parametrize(
    ("file_name", "content", "expected"),
    [
        ("a.json", json.dumps(ROWS).encode(), ("json", "alpaca", 2)),
        ("a.json", json.dumps({"data": ROWS}, indent=1).encode(), ("json", "alpaca", 2)),
        ("a.json", JSONL, ("jsonl", "alpaca", 2)),
        (
            "a.csv",
            'prompt,completion\n안녕,"네,\n반가워요"\n'.encode(),
            ("csv", "prompt_completion", 1),
        ),
        ("a.tsv", b"text\tid\nhello\t1\nworld\t2\n", ("csv", "text", 2)),
        ("a.jsonl.gz", gzip.compress(JSONL), ("jsonl", "alpaca", 2)),
        ("data", JSONL, ("jsonl", "alpaca", 2)),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": "a"}, '
            b'{"role": "assistant", "content": "b"}]}',
            ("jsonl", "messages", 1),
        ),
        (
            "a.jsonl",
            b'\xef\xbb\xbf{"conversations": [{"from": "human", "value": "a"}]}\n\n',
            ("jsonl", "sharegpt", 1),
        ),
    ],
)
def test_formats_are_recognised(
    tmp_path: Path, file_name: str, content: bytes, expected: tuple[str, str, int]
) -> None:
    found = look(tmp_path, file_name, content)
    assert (found.file_format, found.row_format, found.rows) == expected
    assert (found.problems, found.refused) == ([], [])


BROKEN = JSONL * 3 + b'{"instruction": "x", "output"}\n' + JSONL
REFUSED = [
    ("empty.jsonl", b"", "is empty"),
    ("blank.jsonl", b"\n \n", "has no rows"),
    ("header.csv", b"prompt,completion\n", "has no rows"),
    ("array.json", b"[]", "has no rows"),
    ("broken.jsonl", BROKEN, "broken.jsonl line 7: it is not valid JSON"),
    ("number.jsonl", JSONL + b"17\n", "line 3: it is a number instead of a JSON object"),
    ("broken.json", b'[{"text": "a"},\n{"text": }]', "line 2 is not valid JSON"),
    ("fields.csv", b"a,b\n1,2\n1,2,3\n", "line 3: it has 3 fields, but the header names 2"),
    ("cp949.jsonl", '{"text": "a"}\n{"text": "환불"}'.encode("cp949"), "line 2 is not UTF-8"),
    ("utf16.csv", "text\nhello\n".encode("utf-16"), "it looks like UTF-16"),
    ("torn.jsonl.gz", gzip.compress(JSONL)[:-9], "is a damaged gzip file"),
    ("unknown.bin", b"\x00\x01\x02", "is of an unknown kind"),
    ("notes.txt", b"hello", "is of an unknown kind"),
    ("start.parquet", b"PARX" + bytes(40) + b"PAR1", "does not begin with PAR1"),
    ("end.parquet", b"PAR1" + bytes(40), "does not end with PAR1"),
    ("short.parquet", b"PAR1", "is cut off"),
    ("footer.parquet", b"PAR1" + bytes(40) + b"\x10\0\0\0PAR1", "its footer is damaged"),
    ("length.parquet", b"PAR1" + bytes(40) + b"\xff\xff\0\0PAR1", "its footer is damaged"),
    ("parquet.csv", b"PAR1" + bytes(40) + b"PAR1", "name it .parquet"),
]


@pytest.mark.parametrize(("file_name", "content", "message"), REFUSED)
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, file_name: str, content: bytes, message: str
) -> None:
    refused = look(tmp_path, file_name, content).refused
    assert message in refused[0].message
    assert file_name in refused[0].message


def test_every_broken_line_is_named(tmp_path: Path) -> None:
    content = b"".join(b"{\n" if n in (2, 5) else b'{"text": "a"}\n' for n in range(1, 8))
    assert [problem.line for problem in look(tmp_path, "two.jsonl", content).refused] == [2, 5]
    many = look(tmp_path, "many.jsonl", b"{\n" * 1000)
    assert len(many.refused) == 10


def test_rows_that_preparation_will_object_to_are_listed(tmp_path: Path) -> None:
    rows = [*ROWS, {"instruction": "x", "output": None}, *ROWS]
    content = "\n".join(json.dumps(row) for row in rows).encode()
    found = look(tmp_path, "x.jsonl", content)
    assert [problem.line for problem in found.problems] == [3]
    assert "`output` must be a string" in found.problems[0].message
    unclear = look(tmp_path, "x.jsonl", b'{"question": "a", "answer": "b"}')
    assert unclear.row_format is None
    assert "fits no format" in unclear.problems[0].message
    many = look(tmp_path, "x.jsonl", JSONL + b'{"instruction": "x", "output": 1}\n' * 60)
    assert len(many.problems) == 51
    assert many.problems[-1].message == "and 10 more rows with problems"


def test_names_that_no_database_takes_are_made_plain(tmp_path: Path) -> None:
    found = look(tmp_path, "x.jsonl", b'{"text": "a", "\\u0000": 1, "\\ud800": 2}')
    assert found.columns == ["text", "\ufffd", "?"]


@pytest.mark.train
def test_footers_of_real_parquet_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    table = pa.table(
        {
            "id": pa.array(range(1000), pa.int64()),
            "메시지": [[{"role": "user", "content": "a"}]] * 1000,
            "flag": [True, None] * 500,
            "map": pa.array([[("a", 1)]] * 1000, pa.map_(pa.string(), pa.int32())),
        }
    )
    for version in ("1.0", "2.6"):
        pq.write_table(table, path, version=version, row_group_size=100, compression="zstd")
        footer = read_footer(path)
        assert footer.rows == 1000
        assert list(footer.columns) == ["id", "메시지", "flag", "map"]
        assert {"role", "content"} <= set(footer.columns["메시지"])
    whole = path.read_bytes()
    for cut in range(8, 200, 7):  # a footer damaged anywhere is an error, never a crash
        path.write_bytes(whole[: -8 - cut] + b"\xff" * cut + whole[-8:])
        with contextlib.suppress(BrokenParquet):
            read_footer(path)


def test_archives_are_looked_into(tmp_path: Path) -> None:
    """Images by folder, or rows of any kind; what is unsafe or damaged is refused in words."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train/cat/1.png", b"x")
        archive.writestr("train/dog/1.png", b"x")
        archive.writestr("test/dog/2.png", b"x")
    found = look(tmp_path, "photos.zip", buffer.getvalue())
    assert (found.file_format, found.row_format, found.rows) == ("zip", "labelled_images", 3)
    assert (found.columns, found.problems, found.refused) == (["image", "label"], [], [])
    found = look(tmp_path, "photos.zip", buffer.getvalue()[:-40])
    assert "is no whole zip archive" in found.refused[0].message
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.jsonl", JSONL)
    assert look(tmp_path, "rows.zip", buffer.getvalue()).row_format == "alpaca"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../a.jsonl", JSONL)
    assert "leads out of it" in look(tmp_path, "rows.zip", buffer.getvalue()).refused[0].message
