"""A new task type: its block, its file and a line in each of two tables; nothing else changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer_core.small_tasks import Small, documents

pytestmark = pytest.mark.train

REPOSITORY = Path(__file__).parents[2]
BLOCK = '''
from typing import Literal
from pydantic import Field
from trainer_core.spec.base import TaskBlock

class EchoTask(TaskBlock):
    """Learns texts by heart."""

    type: Literal["echo"]
    max_length: int | None = Field(None, ge=8)
'''
TASK = """
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts
from trainer_core.token_trainer import token_trainer

FACTS = TaskFacts(
    formats=("text",),
    rows="documents",
    model=ModelKind("AutoModelForCausalLM", "a causal language model", "CAUSAL_LM"),
    defaults=Defaults(learning_rate=0.01, adapter_learning_rate=0.02, max_length=512),
    card=CardText("text-generation", "learning by heart", {"loss": "training loss (last)"}),
    adapters={"none": None, "lora": "what is learned by heart needs every weight"},
)

def open_fields(spec):
    return {"max_length": FACTS.defaults.max_length}

def problems(spec, hardware):
    return iter(())

def build_trainer(context):
    return token_trainer(context)
"""
LINES = {
    "spec/task.py": (
        "    | DpoTask\n",
        "    | DpoTask\n    | EchoTask\n",
        "from trainer_core.spec.tasks.sft",
        "from trainer_core.spec.tasks.echo import EchoTask\nfrom trainer_core.spec.tasks.sft",
    ),
    "task.py": (
        '    "dpo": dpo,\n',
        '    "dpo": dpo,\n    "echo": echo,\n',
        "    dpo,\n",
        "    dpo,\n    echo,\n",
    ),
}


def test_one_file_and_one_line(small: Small, tmp_path: Path) -> None:
    """In a copy of the trainer: refusals, defaults, preparation, a run, a model and its card."""
    core = tmp_path / "trainer_core"
    shutil.copytree(REPOSITORY / "trainer_core", core, ignore=shutil.ignore_patterns("__pycache__"))
    (core / "spec/tasks/echo.py").write_text(BLOCK)
    (core / "tasks/echo.py").write_text(TASK)
    for name, edits in LINES.items():
        text = (core / name).read_text()
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (core / name).write_text(text)

    launch = small.launch("echo", {"type": "echo"}, documents(12), training={"max_steps": 3})
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(launch["spec"]))
    assert _run(tmp_path, "run", str(path), "--out", str(tmp_path / "out")) == ""
    assert "made by learning by heart (3 steps)" in (tmp_path / "out/model/README.md").read_text()

    path.write_text(json.dumps(launch["spec"] | {"adapter": {"type": "lora"}}))
    refused = _run(tmp_path, "run", str(path), "--out", str(tmp_path / "refused"), code=64)
    assert "what is learned by heart needs every weight" in refused


def _run(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return "" if code == 0 else done.stderr + done.stdout
