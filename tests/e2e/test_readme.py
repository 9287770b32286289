"""The README's session with curl, word for word, against the running stack."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polar.manifest import verify
from tests.e2e.harness import World
from tests.services import ROOT
from trainer_core.task import TASKS

pytestmark = pytest.mark.train

SESSION = re.compile(r"<!-- session -->\n```bash\n(.*?)```\n<!-- end of session -->", re.DOTALL)


@pytest.fixture
def checkout(world: World, tmp_path: Path) -> Path:
    """A folder that looks like the project after `make run`, with a tiny model in its place."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    model = world.home.path / "models" / "SmolLM2-135M-Instruct"
    shutil.copytree(world.model, model, dirs_exist_ok=True)
    return tmp_path


def _session() -> str:
    found = SESSION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    return found.group(1)


def _shell(world: World, checkout: Path, script: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(checkout),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "POLAR_HOME": str(world.home.path),
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_curl_session_works_word_for_word(world: World, checkout: Path):
    done = _shell(world, checkout, _session() + '\necho; echo "job: $job"\n')
    assert done.returncode == 0, done.stderr
    frames = [json.loads(line[6:]) for line in done.stdout.splitlines() if line[:6] == "data: "]
    assert frames[-1]["type"] == "end"
    assert frames[-1]["status"] == "succeeded"
    losses = [f["data"]["loss"] for f in frames if f["type"] == "metrics" and "loss" in f["data"]]
    assert len(losses) == 20
    job = done.stdout.rsplit("job: ", 1)[1].strip()
    assert world.get(job)["name"] == "my-first-job"
    assert verify(checkout / "model") == len(list((checkout / "model").iterdir())) - 1


def test_what_is_refused_says_why(world: World, checkout: Path):
    """Not the number of a status alone, and nothing is done afterwards."""
    done = _shell(world, checkout, _session().replace('"max_length"', '"max_lenght"'))
    assert done.returncode != 0
    assert "did you mean `max_length`?" in done.stderr
    assert "Traceback" not in done.stderr
    assert "data: " not in done.stdout


def test_every_task_type_is_named_and_has_an_example():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    sentence = text.partition("`task.type` is ")[2].partition("[examples/]")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(TASKS)
    specs = [json.loads(path.read_text()) for path in (ROOT / "examples").glob("*.json")]
    assert {spec["task"]["type"] for spec in specs} == set(TASKS)
