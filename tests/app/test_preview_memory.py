"""A preview shows what fits, and costs the API no memory, whatever the row."""

import concurrent.futures
import gzip
import re
from pathlib import Path

from app.ids import new_id
from tests.app.server import Api
from tests.app.stored import store_of

MANY = 20_000_000  # empty lists: 60 MB of JSON, more than a gigabyte of Python, kilobytes of gzip


def stored(api: Api, name: str, content: bytes) -> str:
    """Keep a data set that was uploaded and looked through; returns the path of its preview."""
    dataset = new_id("ds")
    key = f"prj_default/datasets/{dataset}/v1/{name}"
    store_of(api).put_bytes(key, content)
    api.write(
        "INSERT INTO datasets (id, project_id, name, version, source, location, file_name, size,"
        " file_format) VALUES (:id, 'prj_default', :id, 1, 'upload', :key, :name, :size, 'jsonl')",
        id=dataset,
        key=key,
        name=name,
        size=len(content),
    )
    return f"/datasets/{dataset}/preview"


def peak(api: Api) -> int:
    """Return the most memory that the API has had, in MiB."""
    status = Path(f"/proc/{api.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) // 1024


def test_a_row_of_a_gigabyte_costs_the_api_nothing(api: Api) -> None:
    rows = b'{"text": "first"}\n{"text": "a", "x": [' + b"[]," * MANY + b"[]]}\n"
    content = gzip.compress(rows, compresslevel=1)
    assert len(content) < 2**20
    path = stored(api, "rows.jsonl.gz", content)
    before = peak(api)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: api.client.get(path), range(2)))
    for answer in answers:
        assert answer.status_code == 200, answer.text
        shown = answer.json()
        assert [row["values"] for row in shown["rows"]] == [{"text": "first"}]
        assert "too large to be shown" in shown["note"]
    assert peak(api) - before < 200  # the row alone has 20 million objects of 56 bytes and more


def test_long_values_are_cut(api: Api) -> None:
    rows = [
        '{"text": "' + "가" * 50_000 + '", "after": 1}',
        '{"many": [' + "[]," * 100_000 + "[]]}",
        '{"deep": ' + "[" * 50 + "]" * 50 + "}",
        "{" + ",".join(f'"{number}": {number}' for number in range(50_000)) + "}",
        '{"text": "short", "half": "\\ud800", "score": NaN}',
    ]
    path = stored(api, "rows.jsonl", "\n".join(rows).encode())
    shown = api.client.get(path).json()["rows"]
    text, many, deep, wide, short = (row["values"] for row in shown)
    assert text == {"text": "가" * 2000 + "…", "after": 1}
    assert many["many"] == [[]] * len(many["many"])
    assert 1000 < len(many["many"]) < 16_000
    assert "…" in str(deep)
    assert len(str(wide)) < 100_000
    assert short == {"text": "short", "half": "?", "score": "NaN"}
    assert [row["shortened"] for row in shown] == [True, True, True, True, False]
