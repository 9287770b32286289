"""Files of every kind: rows with their place, and errors that name line and way out."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from trainer_core.data import readers
from trainer_core.data.readers import File, read_file
from trainer_core.data.rows import Row
from trainer_core.errors import InvalidData

ROWS = [{"prompt": f'질문 {i}, a "quote"\nand a line', "completion": f" 답 {i} "} for i in range(5)]


def rows(path: Path) -> list[Row]:
    return list(read_file(File("data.train[0]", path)))


def values(path: Path) -> list[dict[str, Any]]:
    return [row.values for row in rows(path)]


def error(path: Path) -> str:
    with pytest.raises(InvalidData) as wrong:
        rows(path)
    assert wrong.value.field == "data.train[0]"
    assert wrong.value.message.startswith(f"data.train[0]: {path.name}")
    return wrong.value.message


def as_jsonl(content: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content).encode()


def as_csv(delimiter: str) -> bytes:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = [["prompt", "completion"], *([r["prompt"], r["completion"]] for r in ROWS)]
    return "".join(delimiter.join(map(cell, line)) + "\r\n" for line in lines).encode()


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", as_jsonl(ROWS)),
        ("a.json", as_jsonl(ROWS)),  # JSON lines under another name are common
        ("a.json", json.dumps(ROWS, ensure_ascii=False).encode()),
        ("a.json", json.dumps({"meta": {"n": 5}, "data": ROWS}, indent=2).encode()),
        ("bom.jsonl", b"\xef\xbb\xbf" + as_jsonl(ROWS)),
        ("bom.csv", b"\xef\xbb\xbf" + as_csv(",")),
        ("a.csv", as_csv(",")),
        ("semicolon.csv", as_csv(";")),
        ("a.tsv", as_csv("\t")),
        ("noextension", as_jsonl(ROWS)),
        ("blank lines.jsonl", as_jsonl(ROWS).replace(b"\n", b"\n\n")),
    ],
)
def test_content_arrives_as_it_is(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert values(path) == ROWS
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(content))
    assert values(packed) == ROWS


def test_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == ROWS
    assert [str(r.place) for r in rows(tmp_path / "a.parquet")][:2] == [
        "a.parquet row 1",
        "a.parquet row 2",
    ]


def test_places_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(as_csv(","))
    # The header is line 1, and each record goes over two lines.
    assert [r.place.number for r in rows(path)] == [2, 4, 6, 8, 10]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"a": 1}, {"a": 2}], indent=2))
    assert [r.place.number for r in rows(path)] == [2, 5]


def test_broken_jsonl_line_is_a_row_with_a_problem(tmp_path: Path) -> None:
    lines = as_jsonl([{"text": str(i)} for i in range(9)]).splitlines(keepends=True)
    lines[6] = b'{"text": "torn\n'
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    found = rows(tmp_path / "a.jsonl")
    assert [str(r.place) for r in found if r.problem] == ["a.jsonl line 7"]
    assert found[6].problem == "it is not valid JSON: Invalid control character at character 15"
    assert len(found) == 9


def test_json_that_python_cannot_hold(tmp_path: Path) -> None:
    deep, long = "[" * 100_000, f'{{"a": {"9" * 5000}}}'
    (tmp_path / "a.jsonl").write_text(f"{deep}\n{long}\n")
    assert [r.problem for r in rows(tmp_path / "a.jsonl")] == [
        "it is not valid JSON: it is nested too deeply",
        "it is not valid JSON: a number in it has too many digits",
    ]
    (tmp_path / "deep.json").write_text(deep)
    assert "line 1 is not valid JSON: it is nested too deeply." in error(tmp_path / "deep.json")
    (tmp_path / "long.json").write_text(f"[{long}]")
    assert "line 1 is not valid JSON: a number in it has too" in error(tmp_path / "long.json")


def test_line_that_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n[1]\n"x"\n')
    assert [r.problem for r in rows(tmp_path / "a.jsonl")] == [
        None,
        "it is a list instead of a JSON object",
        "it is a string instead of a JSON object",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1},\n {"a": }]', "line 2 is not valid JSON: Expecting value"),
        ('[{"a": 1},\n {"a": 2}', "line 2 is not valid JSON: expected ',', found its end"),
        ('{"rows":\n [1]}', "the object has no array 'data'"),
        ('[{"a": 1}] x', "something follows behind its end"),
        ('[{"a": 1},]', "a comma stands before ']'"),
    ],
)
def test_broken_json(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert message in error(tmp_path / "a.json")


def test_json_values_may_be_torn_by_chunks(tmp_path: Path) -> None:
    # Lines are read about a megabyte at a time; numbers, escapes and strings cross the borders.
    content = [
        {"n": i, "text": "\\u00e9" * (i % 97), "x": [1.5, None, True]} for i in range(20_000)
    ]
    (tmp_path / "a.json").write_text(json.dumps(content, indent=0))
    assert values(tmp_path / "a.json") == content


def test_json_array_is_not_held_in_memory(tmp_path: Path) -> None:
    row = json.dumps({"text": "x" * 1000})
    (tmp_path / "a.json").write_text("[" + ",\n".join([row] * 30_000) + "]")
    tracemalloc.start()
    count = sum(1 for _ in read_file(File("f", tmp_path / "a.json")))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 30_000
    # The file has 30 MB; a few chunks of one MB each are in memory.
    assert peak < 15_000_000


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_wrong_encoding_names_byte_line_and_conversion(tmp_path: Path, name: str) -> None:
    text = {
        "a.jsonl": '{"text": "ok"}\n{"text": "주문"}\n',
        "a.csv": "text\n주문\n",
        "a.json": '[{"text":\n"주문"}]',
    }[name]
    content = text.encode("cp949")
    (tmp_path / name).write_bytes(content)
    at = next(i for i, byte in enumerate(content) if byte > 127)
    assert error(tmp_path / name) == (
        f"data.train[0]: {name} line 2 is not UTF-8 (byte {at}: 0x{content[at]:02x}); it looks "
        f"like CP949. Convert it: iconv -f CP949 -t UTF-8 '{name}' > 'utf8-{name}'"
    )


def test_utf16_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text\nhello\n".encode("utf-16"))
    assert "it looks like UTF-16" in error(tmp_path / "a.csv")


def test_corrupt_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "torn.parquet").write_bytes(whole[: len(whole) // 2])
    assert "is not a whole Parquet file" in error(tmp_path / "torn.parquet")
    assert error(tmp_path / "torn.parquet").endswith("write it again")
    (tmp_path / "text.parquet").write_text("hello")
    assert "is not a whole Parquet file" in error(tmp_path / "text.parquet")


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(as_jsonl(ROWS))
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-12])
    assert "is a damaged gzip file" in error(tmp_path / "a.jsonl.gz")


def test_csv_row_with_another_number_of_fields(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,completion\nhi,there\none,two,three\n")
    assert rows(tmp_path / "a.csv")[1].problem == (
        "it has 3 fields, but the header names 2: quote fields that hold the delimiter"
    )


def test_csv_with_an_open_quote(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,completion\nhi,there\n"open,quote\n')
    assert "line 3 is not valid CSV" in error(tmp_path / "a.csv")


def test_csv_header_twice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    assert "names the column 'text' twice" in error(tmp_path / "a.csv")


def test_unknown_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("just text")
    assert "use JSONL, JSON, CSV or Parquet" in error(tmp_path / "notes.txt")


def test_unreadable_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in error(tmp_path / "gone.csv")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz", "a.csv.gz"])
def test_a_file_that_unpacks_to_far_more_than_text_does_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(readers, "HARMLESS", 1 << 20)
    row = b'{"text": "' + b"a" * 5000 + b'"}'
    rows = {"a.jsonl.gz": row + b"\n", "a.json.gz": row + b",", "a.csv.gz": b"a" * 5000 + b"\n"}
    path = tmp_path / name
    start = {"a.json.gz": b"[", "a.csv.gz": b"text\n"}.get(name, b"")
    path.write_bytes(gzip.compress(start + rows[name] * 2000))
    with pytest.raises(InvalidData, match="unpacks to more than 200 times its size"):
        list(readers.read_file(readers.File("data.train[0]", path)))


def test_an_array_of_one_line_is_never_whole_in_memory(tmp_path: Path) -> None:
    """The wrong byte is named by its line and number, wherever the chunks end."""
    path = tmp_path / "a.json"
    good = '{"text": "안녕"},\n'.encode()
    count = (3 << 20) // len(good)
    path.write_bytes(b"[" + good * count + b'{"text": "\xff"}]')
    with pytest.raises(InvalidData) as wrong:
        list(readers.read_file(readers.File("data.train[0]", path)))
    byte = 1 + len(good) * count + len(b'{"text": "')
    assert f"line {count + 1} is not UTF-8 (byte {byte}: 0xff)" in wrong.value.message
