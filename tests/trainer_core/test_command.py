"""`python -m trainer_core`: the trainer by itself, without any service."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.tiny import make_tiny_model, random_rows, write_prepared
from trainer_core.events import read_events
from trainer_core.publish.manifest import verify
from trainer_core.spec import TrainSpec

REPOSITORY = Path(__file__).parents[2]
ANSWERS = ("내일 도착합니다.", "Within thirty days.", "Yes, with the receipt.")


def _run(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer_core", *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def _spec(folder: Path) -> dict[str, Any]:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Question {i}?"},
                {"role": "assistant", "content": ANSWERS[i % 3]},
            ]
        }
        for i in range(24)
    ]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (folder / "data.jsonl").write_text(text)
    return {
        "task": {"type": "sft", "max_length": 64},
        "model": {"source": "folder", "name_or_path": str(folder / "model")},
        "data": {
            "train": [{"source": "folder", "path": str(folder / "data.jsonl")}],
            "validation": {"split_ratio": 0.2},
        },
        "training": {"learning_rate": 0.02, "per_device_train_batch_size": 4},
        "adapter": {"type": "lora"},
    }


def _write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "작업 folder"
    path.mkdir()
    return path


@pytest.mark.train
def test_a_spec_is_all_it_takes(folder: Path) -> None:
    """Cold: prepares, trains 3 epochs until the loss falls, evaluates and publishes."""
    make_tiny_model(folder / "model")
    done = _run("run", _write(folder / "spec.json", _spec(folder)), "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    assert "── training" in done.stdout
    assert "validation loss" in done.stdout
    assert "── succeeded at step" in done.stdout
    assert verify(folder / "out/model").kind == "model"
    events = [event for event, _ in read_events(folder / "out/events.jsonl")]
    losses = [e.data["loss"] for e in events if e.type == "metrics" and "loss" in e.data]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.train
def test_sigterm_while_the_stack_is_imported(folder: Path) -> None:
    """A cold run is stopped as soon as it says `loading`: 75, long before it could train."""
    make_tiny_model(folder / "model")
    rows = random_rows(8)
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "spec": _spec(folder),
        "paths": {
            "work": str(folder / "work"),
            "prepared": str(write_prepared(folder / "prepared", rows)),
        },
    }
    path = _write(folder / "launch.json", launch)
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer_core", "run", str(path)], cwd=REPOSITORY
    )
    events = folder / "work/events.jsonl"
    deadline = time.monotonic() + 60
    while not (events.exists() and events.stat().st_size):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75
    assert json.loads((folder / "work/exit.json").read_text())["reason"] == "interrupted"


def test_wrong_fields_are_named_line_by_line(folder: Path) -> None:
    spec = _spec(folder)
    spec["training"] |= {"learning_rat": 1, "max_steps": "ten"}
    done = _run("run", _write(folder / "spec.json", spec), "--out", folder / "out")
    assert done.returncode == 64
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert any(line.startswith("/training/max_steps: ") for line in lines)
    [unknown] = [line for line in lines if line.startswith("/training/learning_rat: ")]
    assert "learning_rate" in unknown
    assert not (folder / "out").exists()


def test_a_supervisor_finds_the_reason_of_a_wrong_launch(folder: Path) -> None:
    launch = {"spec": _spec(folder) | {"nonsense": 1}, "paths": {"work": str(folder)}}
    done = _run("run", _write(folder / "launch.json", launch))
    assert done.returncode == 64
    ending = json.loads((folder / "exit.json").read_text())
    assert (ending["code"], ending["reason"]) == (64, "invalid_spec")


@pytest.mark.train
def test_a_supervisor_finds_the_reason_of_what_nobody_expected(folder: Path) -> None:
    (folder / ".rows.lock").mkdir()
    launch = {"spec": _spec(folder), "paths": {"work": str(folder)}}
    launch |= {"attempt_id": "a", "job_id": "j", "job_name": "n"}
    done = _run("prepare", _write(folder / "launch.json", launch), "--out", folder / "rows")
    assert done.returncode == 70
    ending = json.loads((folder / "exit.json").read_text())
    assert (ending["code"], ending["reason"]) == (70, "trainer_error")
    assert ".rows.lock" in ending["message"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", "is not JSON"),
        (
            '{"task": {"type": "sft", "type": "clm"}}',
            "is not JSON: 'type' is named twice in one object: keep one",
        ),
        ("[" * 100_000, "is not JSON: it is nested too deeply"),
        ('{\n"name": "shop",\n}', "line 3, character 1"),
        ("[1]", "must hold a JSON object"),
    ],
)
def test_files_that_are_no_spec(folder: Path, content: str | None, said: str) -> None:
    path = folder / "spec.json"
    if content is not None:
        path.write_text(content)
    done = _run("run", path)
    assert done.returncode == 64
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_resolve_fills_every_default(folder: Path) -> None:
    done = _run("resolve", _write(folder / "spec.json", _spec(folder)))
    assert done.returncode == 0, done.stderr
    spec = TrainSpec.model_validate_json(done.stdout)
    assert spec.training.per_device_train_batch_size == 4  # as given
    assert spec.training.gradient_accumulation_steps is not None
    assert spec.backend == "hf"


def test_schema_is_the_spec() -> None:
    assert json.loads(_run("schema").stdout) == TrainSpec.model_json_schema()


def test_light_commands_load_no_training_stack() -> None:
    code = (
        "import sys, trainer_core.__main__, trainer_core.runner\n"
        "print({'torch', 'transformers', 'trl', 'peft', 'datasets', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.train
def test_secrets_come_by_descriptor(folder: Path) -> None:
    """A hub model with a token: the secret is read (so only the hub is missing), never shown."""
    spec = _spec(folder)
    spec["model"] = {"source": "hub", "name_or_path": "org/none", "token": {"secret": "hub"}}
    launch = {
        "attempt_id": "a",
        "job_id": "j",
        "job_name": "n",
        "spec": spec,
        "paths": {"work": str(folder / "work")},
    }
    path = _write(folder / "launch.json", launch)
    receive, send = os.pipe()
    os.write(send, b'{"hub": "hf_verySecret123"}')
    os.close(send)
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "run", str(path)],
        cwd=REPOSITORY,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "POLAR_SECRETS_FD": str(receive)},
        pass_fds=[receive],
        capture_output=True,
        text=True,
        timeout=120,
    )
    os.close(receive)
    assert done.returncode == 64
    ending = json.loads((folder / "work/exit.json").read_text())
    assert ending["reason"] == "model_unavailable"
    assert "hf_verySecret123" not in done.stdout + done.stderr + json.dumps(ending)
