"""A new task type: one file and its line in the table; nothing else changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.small_tasks import Small, documents

pytestmark = pytest.mark.train

REPOSITORY = Path(__file__).parents[2]
TASK = '''
from typing import Literal
from pydantic import Field
from trainer_core.spec.base import TaskBlock
from trainer_core.task_facts import CardText, Defaults, ModelKind, TaskFacts

class EchoTask(TaskBlock):
    """Learns texts by heart."""

    type: Literal["echo"]
    max_length: int | None = Field(None, ge=8)

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
    from trainer_core.token_trainer import token_trainer
    return token_trainer(context)
'''
TABLE = "spec/task.py"
LINES = {
    "    | DpoTask\n": "    | DpoTask\n    | EchoTask\n",
    "from trainer_core.spec.tasks.sft": "from trainer_core.spec.tasks.echo import EchoTask\n"
    "from trainer_core.spec.tasks.sft",
}


SERVICE = """
import json
from fastapi.testclient import TestClient
from app.main import create_app
app = create_app()
told = TestClient(app).get("/capabilities").json()
print(json.dumps({"openapi": app.openapi(), "capabilities": told}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the trainer and the service in which `echo` is a task type."""
    folder = tmp_path_factory.mktemp("more tasks")
    for room in ("trainer_core", "app"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / room, folder / room, ignore=ignored)
    core = folder / "trainer_core"
    (core / "spec/tasks/echo.py").write_text(TASK)
    text = (core / TABLE).read_text()
    for old, new in LINES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (core / TABLE).write_text(text)
    return folder


@pytest.fixture(scope="module")
def spec(small: Small) -> dict[str, Any]:
    """What an example of it would be."""
    launch = small.launch("echo", {"type": "echo"}, documents(12), training={"max_steps": 3})
    given: dict[str, Any] = launch["spec"]
    return given


def test_it_is_planned_and_trained(copy: Path, spec: dict[str, Any], tmp_path: Path) -> None:
    """Defaults, preparation, steps, a run, a model and its card: as the module's FACTS say."""
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    resolved = json.loads(_trainer(copy, "resolve", path))
    assert resolved["task"] == {"type": "echo", "max_length": 512}
    planned = json.loads(_trainer(copy, "plan", path, "--out", tmp_path / "out", "--json"))
    assert planned["steps"]["total"] == 3
    _trainer(copy, "run", path, "--out", tmp_path / "out")
    assert "made by learning by heart (3 steps)" in (tmp_path / "out/model/README.md").read_text()
    steps = [json.loads(line) for line in (tmp_path / "out/events.jsonl").open(encoding="utf-8")]
    assert max(e["data"]["step"] for e in steps if e["type"] == "metrics") == 3


def test_it_is_refused_by_its_own_reasons(copy: Path, spec: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec | {"adapter": {"type": "lora"}}))
    refused = _trainer(copy, "run", path, "--out", tmp_path / "refused", code=64)
    assert "what is learned by heart needs every weight" in refused
    path.write_text(json.dumps(spec | {"task": {"type": "echo", "packing": True}}))
    refused = _trainer(copy, "resolve", path, code=64)
    assert "/task/packing: " in refused


def test_schema_and_page_have_it(copy: Path) -> None:
    schema = json.loads(_trainer(copy, "schema"))
    assert schema["properties"]["task"]["discriminator"]["mapping"]["echo"] == "#/$defs/EchoTask"
    page = _trainer(copy, "capabilities")
    assert "`echo`" in page
    assert "what is learned by heart needs every weight" in page


def test_the_api_has_it(copy: Path) -> None:
    """What a submission may say, and the table with its reasons, from a service of the copy."""
    told = json.loads(
        _python(copy, "-c", SERVICE, POLAR_AUTH="none", POLAR_HOME=str(copy / "home"))
    )
    schemas = told["openapi"]["components"]["schemas"]
    task = schemas["JobSpec"]["properties"]["task"]
    assert task["discriminator"]["mapping"]["echo"] == "#/components/schemas/EchoTask"
    assert schemas["EchoTask"]["description"] == "Learns texts by heart."
    [block] = [t for t in told["capabilities"]["tasks"] if t["type"] == "echo"]
    assert "max_length" in block["json_schema"]["properties"]
    rows = [r for r in told["capabilities"]["combinations"] if r["task"] == "echo"]
    reasons = {r["adapter"]: r["reason"] for r in rows if r["target"] == "local"}
    assert "needs every weight" in reasons["lora"]
    assert any(r["adapter"] == "none" and r["supported"] for r in rows)


def _trainer(folder: Path, *arguments: str | Path, code: int = 0) -> str:
    return _python(folder, "-m", "trainer_core", *map(str, arguments), code=code)


def _python(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    """What a process of the copy says; on stderr where it is to end with another code."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | variables
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr
