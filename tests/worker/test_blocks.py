"""Streams of a job are read where they lie: by blocks, by the run alone, and no further than it
goes."""

import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.settings import Settings, get_settings
from app.storage import Store
from tests.trainer_core.endless import ENDLESS, LINE, EndlessStore, running
from tests.worker.conftest import forget
from tests.worker.test_preparation_folders import claimed, supervisor
from tests.worker.world import add_job, rows
from trainer_core.data.lent import read_lent
from trainer_core.data.local import Wish
from trainer_core.data.objects import AT_ONCE
from trainer_core.errors import DataUnavailable
from trainer_core.spec import DataSource, TrainSpec
from worker.blocks import BlockServer, Lent
from worker.fetch import Fetcher

KEY = "prj_default/rows.jsonl"
FIELD = "data.train[0]"


class ServiceStore(EndlessStore):
    """The endless object in the service's own bucket, beside what the service writes there."""

    written: set[str]

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        if "list-type=2" in self.path:
            entry = f"<Key>{KEY}</Key><ETag>1</ETag><Size>{ENDLESS}</Size>"
            time = "<LastModified>2026-11-30T10:00:00Z</LastModified>"
            listing = f"<Contents>{entry}{time}</Contents>"
            self.answer(200, f"<ListBucketResult>{listing}</ListBucketResult>".encode())
        else:
            super().do_GET()

    def do_HEAD(self) -> None:  # noqa: N802 - the name that http.server calls
        self.send_response(200 if self.path in self.written else 404)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_PUT(self) -> None:  # noqa: N802 - the name that http.server calls
        self.rfile.read(int(self.headers["Content-Length"]))
        self.written.add(self.path)
        self.answer(200, b"", ETag='"1"')


@pytest.fixture
def endless(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """The settings of a service whose store holds a terabyte."""
    del settings
    ServiceStore.written = set()
    with running(ServiceStore) as url:
        for name, value in {
            "POLAR_S3_ENDPOINT": url,
            "POLAR_S3_ACCESS_KEY": "a",
            "POLAR_S3_SECRET_KEY": "b",
            "POLAR_S3_BUCKET": "polar",
            "POLAR_MODEL_FOLDERS": json.dumps([str(tmp_path)]),
        }.items():
            monkeypatch.setenv(name, value)
        forget()
        yield get_settings()


@pytest.mark.train
def test_a27_a_terabyte_is_prepared_on_a_host_that_has_no_room_for_it(
    endless: Settings, tmp_path: Path
) -> None:
    """5 steps of 16 rows: four bytes, and a block twice; not a byte of it lies in the cache."""
    from tests.trainer_core.tiny import make_tokenizer

    make_tokenizer().save_pretrained(tmp_path / "model")
    job = add_job(
        prepared=False,
        task={"type": "clm", "packing": "none", "max_length": 64},
        model={"source": "folder", "name_or_path": str(tmp_path / "model")},
        data={"train": [{"source": "s3", "path": f"s3://polar/{KEY}"}], "streaming": True},
        training={"max_steps": 5},
    )
    supervisor(endless, job, claimed(job)).run()
    [(status, message, key)] = rows(
        "SELECT status, message, prepared_key FROM jobs WHERE id = :id", id=job
    )
    assert (status, message) == ("queued", None)
    report = json.loads((endless.home / "prepared" / key / "report.json").read_text())
    assert report["train_rows"] == 5 * 16
    assert ServiceStore.given == 4 + 2 * AT_ONCE
    assert [path for path in (endless.home / "cache").rglob("*") if path.is_file()] == []
    assert any(re.search(rf"/{key}/manifest\.json$", path) for path in ServiceStore.written)


def _lent(settings: Settings, content: bytes, key: str = KEY) -> Lent:
    """An object of the service's bucket as a stream of a job lends it."""
    store = Store(settings)
    store.put_bytes(key, content)
    source = {"source": "s3", "path": f"s3://{settings.s3_bucket}/{key}"}
    spec = TrainSpec.model_validate(
        {
            "task": {"type": "sft"},
            "model": {"source": "hub", "name_or_path": "org/model"},
            "data": {"train": [source], "streaming": True},
            "training": {"max_steps": 1},
        }
    )
    brought = Fetcher(settings, store, "prj_default").data(spec)
    assert brought.paths == {}
    return brought.lent["train/0"]


def _texts(lent: Lent, folder: Path, key: str = "train/0") -> Iterator[str]:
    source = DataSource(source="s3", path="s3://polar/rows.jsonl")
    found = read_lent(lent.told(), key, (source, FIELD), folder, Wish())
    return (row.values["text"] for row in found)


def test_objects_and_archives_are_read_block_by_block(
    store_settings: Settings, tmp_path: Path
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("more/a.jsonl", LINE * 3)
    deep = tmp_path / ("a long name" * 10)  # longer than a socket's address can be
    deep.mkdir()
    for content, count in ((LINE * 5, 5), (packed.getvalue(), 3)):
        lent = _lent(store_settings, content)
        with BlockServer(deep, {"train/0": lent}, patience=0) as blocks:
            blocks.serve(os.getpid())
            assert list(_texts(lent, deep)) == ["the parcel was fast and friendly"] * count
            assert blocks.given <= 2 * len(content) + 4


def test_what_lies_below_an_address_is_one_stream(store_settings: Settings, tmp_path: Path) -> None:
    """In the order of names; what is no data file is not read."""
    store = Store(store_settings)
    for name, text in (("b.jsonl", "second"), ("a/a.jsonl", "first"), ("README.md", "none")):
        store.put_bytes(f"prj_default/many/{name}", json.dumps({"text": text}).encode())
    lent = _lent(store_settings, b"text\nlast\n", "prj_default/many/c.csv")
    assert [each.name for each in lent.told().objects] == ["c.csv"]
    spec = TrainSpec.model_validate(
        {
            "task": {"type": "clm"},
            "model": {"source": "hub", "name_or_path": "org/model"},
            "data": {
                "train": [
                    {"source": "s3", "path": f"s3://{store_settings.s3_bucket}/prj_default/many"}
                ],
                "streaming": True,
            },
        }
    )
    every = Fetcher(store_settings, store, "prj_default").data(spec).lent["train/0"]
    with BlockServer(tmp_path, {"train/0": every}, patience=0) as blocks:
        blocks.serve(os.getpid())
        assert list(_texts(every, tmp_path)) == ["first", "second", "last"]


def test_nobody_else_is_served_and_nothing_else(store_settings: Settings, tmp_path: Path) -> None:
    """Another process, a source that was not lent, a run without anyone who lends."""
    lent = _lent(store_settings, LINE)
    with pytest.raises(DataUnavailable, match=r"cannot be read on \(No such file"):
        list(_texts(lent, tmp_path))
    with BlockServer(tmp_path, {"train/0": lent}, patience=0) as blocks:
        blocks.serve(os.getppid())
        with pytest.raises(DataUnavailable, match="cannot be read on"):
            list(_texts(lent, tmp_path))
        assert blocks.given == 0
    with BlockServer(tmp_path, {"train/0": lent}, patience=0) as blocks:
        blocks.serve(os.getpid())
        with pytest.raises(DataUnavailable, match="it was not lent"):
            list(_texts(lent, tmp_path, "train/1"))
        for wrong in (b"{}", b'{"source": "train/0", "name": "rows.jsonl", "begin": 5, "end": 5}'):
            with pytest.raises(ValueError, match=r"it was not asked for|a block has 1 to"):
                blocks.read(wrong)


def test_an_object_that_is_replaced_meanwhile_is_told(
    store_settings: Settings, tmp_path: Path
) -> None:
    """Half of one and half of another would be nobody's rows; another try lists it anew."""
    lent = _lent(store_settings, LINE)
    Store(store_settings).put_bytes(KEY, LINE * 2)
    with BlockServer(tmp_path, {"train/0": lent}, patience=600) as blocks:
        blocks.serve(os.getpid())
        with pytest.raises(DataUnavailable, match="was replaced while it was read") as told:
            list(_texts(lent, tmp_path))
    assert told.value.field == f"{FIELD}.path"
