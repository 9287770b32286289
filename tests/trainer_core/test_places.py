"""Folders that a run or a preparation is told to use, and what may not be lost in them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer_core.small_tasks import Small, opinions
from trainer_core.__main__ import main
from trainer_core.errors import InvalidSpec
from trainer_core.places import work_folder
from trainer_core.prepare import prepare
from trainer_core.spec import Launch


def _file(path: Path) -> Path:
    path.write_text("mine")
    return path


def _below_file(path: Path) -> Path:
    return _file(path) / "out"


def _with(name: str, *, folder: bool = False) -> Callable[[Path], Path]:
    def made(path: Path) -> Path:
        path.mkdir()
        (path / name).mkdir() if folder else _file(path / name)
        return path

    return made


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_file, "is a file"),
        (_below_file, "cannot be made (Not a directory)"),
        (lambda _: Path("/proc/no/such"), "cannot be made"),
        (lambda _: Path("/proc/self"), "cannot be written to"),
        (_with("checkpoints"), "checkpoints' must be a folder"),
        (_with("model"), "model' must be a folder"),
        (_with("events.jsonl", folder=True), "events.jsonl' must be a file"),
    ],
)
def test_what_cannot_be_a_work_folder(
    tmp_path: Path, make: Callable[[Path], Path], said: str
) -> None:
    with pytest.raises(InvalidSpec) as caught, work_folder(make(tmp_path / "work")):
        pass
    assert said in caught.value.message
    assert caught.value.message.startswith("paths.work: '")
    assert caught.value.message.endswith("; choose another folder (--out)")


@pytest.mark.parametrize("name", ["model", "best", "evaluation"])
def test_what_somebody_else_has_there_is_not_replaced(tmp_path: Path, name: str) -> None:
    mine = tmp_path / "work" / name / "weights.bin"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with (
        pytest.raises(InvalidSpec, match=r"would be lost: weights\.bin"),
        work_folder(mine.parents[1]),
    ):
        pass
    _file(mine.parents[1] / "events.jsonl")  # a run's own folder: what it made is replaced
    with work_folder(mine.parents[1]):
        pass


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with work_folder(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                with work_folder(tmp_path):
                    os._exit(0)
            except InvalidSpec as error:
                os._exit(64 if "in use by another run" in error.message else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 64
    with work_folder(tmp_path):
        pass


@pytest.mark.train
def test_a_preparation_deletes_nothing_that_is_not_its_own(small: Small, tmp_path: Path) -> None:
    launch = Launch.model_validate(
        small.launch("places", {"type": "text_classification"}, opinions(4))
    )
    out = tmp_path / "rows"
    out.mkdir()
    mine = _file(out / "notes.txt")
    with pytest.raises(InvalidSpec, match=r"--out: .*would be lost: notes\.txt"):
        prepare(launch, out)
    assert mine.read_text() == "mine"
    mine.unlink()
    first = prepare(launch, out)
    (out / "manifest.json").unlink()  # half of one is made again
    assert prepare(launch, out).data_hash == first.data_hash
    assert _file(tmp_path / "file").is_file()
    for wrong in (tmp_path / "file", Path("/")):
        with pytest.raises(InvalidSpec, match="--out"):
            prepare(launch, wrong)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_names_its_field_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = {
        "task": {"type": "text_classification"},
        "model": {"source": "folder", "name_or_path": str(tmp_path)},
        "data": {"train": [{"source": "folder", "path": "none.jsonl"}]},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert main(["prepare", str(tmp_path / "spec.json"), "--out", str(_file(tmp_path / "f"))]) == 64
    assert capfd.readouterr().err.count("--out: ") == 1
