"""`polar train`: the trainer itself, composed for, watched, interrupted and resumed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polar.local_run import LocalRun, NoRun, keep_spec
from tests.services import ROOT, wait_until
from tests.trainer_core.tiny import make_tiny_model

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, rows and a configuration of its own, in `conf`."""
    folder = tmp_path_factory.mktemp("여기 train")
    make_tiny_model(folder / "tiny")
    rows = (f'{{"prompt": "주문 {n}", "completion": "내일 {n % 7}"}}\n' for n in range(40))
    (folder / "rows.jsonl").write_text("".join(rows), encoding="utf-8")
    (folder / "conf").mkdir()
    (folder / "conf" / "job.yaml").write_text(
        "defaults: [{task: sft}, {data: file}, _self_]\n"
        "model: {source: folder, name_or_path: tiny}\n"
        "data: {train: [{source: folder, path: rows.jsonl}]}\n"
        "training: {max_steps: 3, per_device_train_batch_size: 2}\n",
        encoding="utf-8",
    )
    return folder


BARE = ["task=sft", "model=smollm2", "data=file", "data.train.0.path=rows.jsonl"]


def begin(place: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "polar", "train", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a terminal starts it, also where these tests run in the background of a shell.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def train(place: Path, *words: str) -> tuple[int, str, str]:
    process = begin(place, *words)
    said, complained = process.communicate(timeout=280)
    return process.returncode, said, complained


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [e["data"]["loss"] for e in events if e["type"] == "metrics" and "loss" in e["data"]]


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_it_trains_with_the_numbers_of_the_trainer(place: Path):
    """Event for event what `python -m trainer_core run` reports of the printed spec."""
    code, printed, complained = train(place, "--cfg", "job", "training.learning_rate=1e-3")
    assert code == 0, complained
    (place / "printed.json").write_text(printed, encoding="utf-8")
    bare = subprocess.run(
        [sys.executable, "-P", "-m", "trainer_core", "run", "printed.json", "--out", "bare"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert bare.returncode == 0, bare.stderr
    code, said, complained = train(place, "training.learning_rate=1e-3", "--json", "--out", "ours")
    assert code == 0, complained
    told = lines(said)
    assert told[-1] | {"message": ""} == {
        "type": "end",
        "exit_code": 0,
        "status": "succeeded",
        "reason": "",
        "message": "",
        "folder": "ours",
    }
    expected = losses(lines((place / "bare/events.jsonl").read_text()))
    assert len(expected) == 3
    assert losses(told) == expected
    code, _, complained = train(place, "--out", "ours")
    assert code == 64
    assert "--resume ours goes on with it" in complained


def test_ctrl_c_keeps_a_checkpoint_and_resume_goes_on(place: Path):
    process = begin(place, "training.max_steps=90000", "checkpoint.save_steps=90000", "name=long")
    events = place / "runs/long/events.jsonl"

    def is_training() -> bool:
        assert process.poll() is None, process.communicate()
        return events.exists() and '"loss"' in events.read_text()

    wait_until(is_training, timeout=250)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=100)
    assert process.returncode == 75, complained
    assert "polar train --resume runs/long goes on" in said
    stopped = len(losses(lines(events.read_text())))
    assert 0 < stopped < 90000
    spec = next((place / "runs/long/job").glob("*.json"))
    process = begin(place, "--resume", "runs/long", "--json")
    resumed = json.loads(next(line for line in process.stdout or [] if '"resumed"' in line))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert resumed["data"]["step"] == stopped
    assert spec.stem == "long"


def test_what_cannot_be_trained_ends_with_its_reason(place: Path):
    code, said, _ = train(place, "training.lerning_rate=1", "--json")
    assert code == 64
    [problem] = json.loads(said)["problems"]
    assert problem["pointer"] == "/training/lerning_rate"
    assert problem["origin"] == "training.lerning_rate=1"
    code, said, _ = train(place, "data.train.0.path=none.jsonl", "--out", "none")
    assert code == 64
    assert "none.jsonl" in said
    code, said, _ = train(place, "data.train.0.path=other.jsonl", "--out", "none")  # corrected
    assert code == 64
    assert "other.jsonl" in said
    code, said, complained = train(place, "--resume", "none", "--cfg", "job")
    assert (code, said) == (64, "")
    assert "leave the rest out" in complained
    code, _, complained = train(place, "--resume", "nowhere")
    assert code == 64
    assert "no run was begun" in complained


HOLD = """
import sys
from pathlib import Path
from trainer_core.places import work_folder
with work_folder(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


def test_what_may_be_worth_something_is_not_replaced(tmp_path: Path):
    keep_spec(tmp_path, "first.json", {"name": "first"})
    events, ended = tmp_path / "events.jsonl", tmp_path / "exit.json"
    before = {events: '{"type": "log"}\n', ended: '{"code": 64}'}

    def refuse(told: str, changed: dict[Path, str]) -> None:
        files = before | changed
        for file, text in files.items():
            file.write_text(text)
        with pytest.raises(NoRun, match=told):
            LocalRun.begin("second", {}, tmp_path)
        assert {file: file.read_text() for file in files} == files
        assert [each.name for each in (tmp_path / "job").iterdir()] == ["first.json"]

    refuse("a run in", {events: '{"type": "metrics", "data": {}}\n'})  # it trained for a while
    refuse("a run in", {ended: "[]"})
    holder = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(holder, cwd=ROOT, **pipes) as other:  # it was taken up again
        assert other.stdout is not None
        other.stdout.readline()
        refuse("in use by another run", {})
        other.communicate()
    again = LocalRun.resume(tmp_path)
    assert not ended.exists()  # until it has ended
    assert again.ending().code == 64


def test_a_folder_has_one_run_and_what_cannot_be_kept_leaves_none(tmp_path: Path):
    with pytest.raises(OSError, match="File name too long"):
        keep_spec(tmp_path, "x" * 300, {})
    assert list(tmp_path.iterdir()) == []
    keep_spec(tmp_path, "first.json", {"name": "first"})
    with pytest.raises(NoRun, match="--out names another folder"):
        keep_spec(tmp_path, "second.json", {"name": "second"})
    assert [each.name for each in tmp_path.rglob("*")] == ["job", "first.json"]
    (tmp_path / "file").touch()
    code, _, complained = train(tmp_path, str(tmp_path / "job/first.json"), *BARE, "--out", "file")
    assert code == 64
    assert "file: File exists: no run can be kept in file" in complained
