"""A27: of a stream as much is read as the run takes, and a run on it is like any other."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.endless import ENDLESS, LINE, EndlessStore, running, span
from tests.trainer_core.runs import Outcome, Zygote, signal_at
from tests.trainer_core.small_tasks import Small, documents
from tests.trainer_core.test_mixture import named, prepared, texts
from tests.trainer_core.test_remote_sources import Hub, run_prepare, with_tokenizer
from tests.trainer_core.tiny import make_tokenizer
from trainer_core.data import pipeline
from trainer_core.data.report import read_report
from trainer_core.errors import InvalidData
from trainer_core.prepare import content_key, prepare
from trainer_core.publish.manifest import read_manifest
from trainer_core.spec import Launch

pytestmark = pytest.mark.train


def stream(path: str, source: str = "folder", **blocks: Any) -> dict[str, Any]:
    """A launch that streams one source; 5 steps of 4 rows unless told otherwise."""
    document: dict[str, Any] = {
        "task": {"type": "clm", "packing": "none", "max_length": 64},
        "model": {"source": "folder", "name_or_path": "/no/model"},
        "data": {"train": [{"source": source, "path": path}], "streaming": True},
        "training": {
            "max_steps": 5,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
        },
    }
    for block, values in blocks.items():
        document[block] = document.get(block, {}) | values
    paths = {"work": "/no"}
    return {"attempt_id": "a", "job_id": "j", "job_name": "n", "spec": document, "paths": paths}


def endless(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of a terabyte that begins with rows; what follows are holes, and no row."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.truncate(path, ENDLESS)
    return path


def test_a27_a_file_is_read_as_far_as_the_run_goes(tmp_path: Path) -> None:
    """5 steps of 16 rows are 80; the key is made without reading the file, too."""
    path = endless(tmp_path / "a.jsonl", named("x", 200))
    given = Launch.model_validate(stream(str(path)))
    key = content_key(given, tmp_path)
    found = prepared(tmp_path, given)
    assert len(found.train) == 5 * 16
    assert found.report.rows_in == 5 * 16
    assert texts(found.train) == [row["text"] for row in named("x", 80)]
    longer = Launch.model_validate(stream(str(path), training={"max_steps": 6}))
    assert content_key(longer, tmp_path) != key


@pytest.mark.parametrize("packing", ["wrapped", "bfd"])
def test_a27_joined_rows_are_counted_by_their_tokens(tmp_path: Path, packing: str) -> None:
    """As many full rows as 5 steps of 16 take, or more, and few documents beyond them."""
    path = endless(tmp_path / "a.jsonl", documents(2000))
    task = {"packing": packing, "max_length": 64}
    given = stream(str(path), task=task, data={"over_length": "split"})
    found = prepared(tmp_path, Launch.model_validate(given))
    assert 80 <= len(found.train) <= 100
    assert found.report.rows_in < 500


def test_a27_rows_for_every_process(tmp_path: Path) -> None:
    wish = {"strategy": "ddp", "processes": 2}
    path = endless(tmp_path / "a.jsonl", named("x", 400))
    given = Launch.model_validate(stream(str(path), distributed=wish))
    assert len(prepared(tmp_path, given).train) == 2 * 5 * 16


def test_a27_streams_are_mixed_in_their_shares(tmp_path: Path) -> None:
    paths = [endless(tmp_path / f"{kind}.jsonl", named(kind, 600)) for kind in "xy"]
    given = stream("")
    given["spec"]["data"]["train"] = [
        {"source": "folder", "path": str(path), "weight": weight}
        for path, weight in zip(paths, (3, 1), strict=True)
    ]
    found = prepared(tmp_path, Launch.model_validate(given))
    counts = {key: source.trained for key, source in found.report.sources.items()}
    assert counts == {"train/0": 60, "train/1": 20}


def test_a27_a_stream_that_ends_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE * 30)
    found = prepared(tmp_path, Launch.model_validate(stream(str(path))))
    assert len(found.train) == 30
    [warning] = [w for w in found.report.warnings if w["code"] == "stream_ended"]
    assert "ended with data.train[0] after 30 usable rows" in warning["message"]


def test_a27_a_stream_of_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are all too long, without an end: after so many of them it is told."""
    monkeypatch.setattr(pipeline, "_MOST_FRUITLESS", 1000)
    path = tmp_path / "a.jsonl"
    row = json.dumps({"text": "the parcel was fast and friendly and perfect"}) + "\n"
    path.write_text(row * 1100)
    os.truncate(path, ENDLESS)
    given = stream(str(path), task={"max_length": 8}, data={"over_length": "drop"})
    with pytest.raises(InvalidData, match=r"none of 1,0\d\d rows in a row"):
        prepare(Launch.model_validate(given), tmp_path / "out", make_tokenizer())


class EndlessHub(Hub):
    """The hub of the other tests, whose one file is a terabyte large."""

    given = 0

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        if "/tree/" in self.path or "paths-info" in self.path:
            entry = {"type": "file", "path": "data.jsonl", "size": ENDLESS, "oid": "1" * 40}
            body = json.dumps([entry]).encode()
        elif self.path.partition("?")[0].endswith("/data.jsonl"):
            self.serve()
            return
        super().answer(status, body, **headers)

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.do_GET()

    def serve(self) -> None:
        """Lines until whoever asks has enough."""
        first, last = span(self.headers, ENDLESS)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{ENDLESS}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "HEAD":
            return
        block, offset = LINE * 1000, first % len(LINE)
        left = last - first + 1
        try:
            while left > 0:
                part = block[offset : offset + left]
                self.wfile.write(part)
                type(self).given += len(part)
                left, offset = left - len(part), 0
        except ConnectionError:
            self.close_connection = True


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """A server of the class that the test asks for, and the class, which counts what it gave."""
    with running(request.param) as url:
        yield url, request.param


@pytest.mark.parametrize("server", [EndlessStore], indirect=True)
def test_a27_an_object_is_read_block_by_block(
    server: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 rows are 4 kB: four bytes to see whether it is an archive, one block to see what kind it
    is, one for the rows, nothing on the disk."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server[0])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    given = Launch.model_validate(stream("s3://bucket/a.jsonl", "s3"))
    content_key(given, tmp_path)
    found = prepared(tmp_path, given)
    assert len(found.train) == 5 * 16
    assert server[1].given == 4 + 2 * (4 << 20)


@pytest.mark.parametrize("server", [EndlessHub], indirect=True)
def test_a27_a_data_set_of_the_hub_is_not_fetched_whole(
    server: tuple[str, Any], tmp_path: Path
) -> None:
    source = {"source": "hub", "path": "owner/data", "token": {"secret": "hub-token"}}
    given = with_tokenizer(tmp_path, source)
    streamed = stream("owner/data", "hub")["spec"] | {"model": given.spec.model.model_dump()}
    streamed["data"] = {"train": [source], "streaming": True}
    launch = given.model_copy(update={"spec": type(given.spec).model_validate(streamed)})
    assert run_prepare(launch, tmp_path, server[0], **{"hub-token": "hf_right"}) == ""
    report = read_report(tmp_path / "work" / "prepared")
    assert report is not None
    assert report.train_rows == 5 * 16
    assert 0 < server[1].given < 64 << 20


def _weights(outcome: Outcome) -> list[str]:
    manifest = read_manifest(outcome.work / "model")
    return [f.sha256 for f in manifest.files if f.path.endswith(".safetensors")]


TASKS: dict[str, dict[str, Any]] = {
    "clm": {"type": "clm", "max_length": 64},
    "sft": {"type": "sft", "loss_on": "all"},
}
STREAM: dict[str, Any] = {"data": {"streaming": True}, "training": {"max_steps": 12}}


@pytest.mark.parametrize("task", TASKS)
def test_a8_a27_a_killed_stream_goes_on_with_the_next_rows(
    small: Small, zygote: Zygote, task: str
) -> None:
    """Killed behind step 7, resumed at 4: losses and weights to the last digit."""
    given = small.launch(f"{task}-whole", TASKS[task], documents(400), **STREAM)
    path = Path(given["spec"]["data"]["train"][0]["path"])
    os.truncate(path, ENDLESS)
    whole = zygote.run(given)
    assert whole.code == 0, whole.log
    assert set(whole.losses) == set(range(1, 13))
    killed = zygote.run(
        _named(given, small.folder / f"{task}-killed"),
        signals=[signal_at("metrics", "SIGKILL", step=7)],
    )
    assert killed.code == -9
    again = _named(given, small.folder / f"{task}-resumed")
    again["paths"]["resume_from"] = str(killed.work / "checkpoints/step-00000004")
    resumed = zygote.run(again)
    assert resumed.code == 0, resumed.log
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 4}
    assert _weights(resumed) == _weights(whole)


def _named(given: dict[str, Any], work: Path) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(given))
    copy["attempt_id"], copy["paths"]["work"] = work.name, str(work)
    return copy


def test_a7_a27_each_row_of_a_stream_is_of_one_rank(small: Small, zygote: Zygote) -> None:
    """Two processes take the rows of one that accumulates twice: 6 steps of 8 rows, each once.

    Tolerance: sums of two halves are rounded elsewhere than one (1e-7 of losses below 7 in fp32).
    """
    runs = []
    for processes, accumulated in ((1, 2), (2, 1)):
        training = {"max_steps": 6, "gradient_accumulation_steps": accumulated}
        strategy = "ddp" if processes > 1 else "none"
        blocks = {
            "data": {"streaming": True},
            "training": training,
            "distributed": {"strategy": strategy, "processes": processes},
            "model": {"name_or_path": str(_calm(small))},
        }
        name = f"stream-{processes}"
        given = small.launch(name, TASKS["clm"], documents(400), **blocks)
        os.truncate(given["spec"]["data"]["train"][0]["path"], ENDLESS)
        runs.append(zygote.run(given))
        assert runs[-1].code == 0, runs[-1].log
        [report] = [read_report(p) for p in (small.folder / name / "prepared").iterdir()]
        assert report is not None
        assert 6 * 8 <= report.train_rows <= 6 * 8 + 1  # the rest of the last document
        assert max(p["epoch"] for p in runs[-1].of("progress")) <= 1
    one, two = runs
    assert two.losses == pytest.approx(one.losses, abs=1e-5)


def _calm(small: Small) -> Path:
    from tests.trainer_core.tiny import make_tiny_model

    return make_tiny_model(small.folder / "calm-llama")
