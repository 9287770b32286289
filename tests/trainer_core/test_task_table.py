"""The table of task types: every member is whole, and a new one needs nothing but its line."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from trainer_core.capabilities import TABLE, check
from trainer_core.data.formats import FORMATS
from trainer_core.resolve import Hardware, resolve
from trainer_core.spec import DataSource, TaskBlock, TaskSpec, TrainSpec
from trainer_core.task import TASKS, Task

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.json"))


def blocks() -> dict[str, type[TaskBlock]]:
    """Type → block, from the union of the spec."""
    union = get_args(TaskSpec)[0]
    return {get_args(b.model_fields["type"].annotation)[0]: b for b in get_args(union)}


def minimal(task: str) -> dict[str, Any]:
    return {
        "task": {"type": task},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
    }


def test_the_tables_of_blocks_and_tasks_have_the_same_members() -> None:
    assert blocks().keys() == TASKS.keys()
    assert {row.task for row in TABLE} == TASKS.keys()


def test_every_format_is_a_choice_of_the_spec() -> None:
    choices = get_args(DataSource.model_fields["format"].annotation)
    assert set(choices) == {"auto", *FORMATS}
    assert {f for task in TASKS.values() for f in task.FACTS.formats} == set(FORMATS)


@pytest.mark.parametrize("name", TASKS)
def test_a_minimal_spec_works_and_is_filled(name: str) -> None:
    """Three fields are enough, and nothing of the task stays open that a run could not decide."""
    spec = TrainSpec.model_validate(minimal(name))
    assert check(spec, Hardware()) == []
    resolved = resolve(spec, Hardware()).spec
    assert resolve(resolved, Hardware()).spec == resolved
    said = TrainSpec.model_validate(resolved.model_dump(mode="json"))
    assert check(said, Hardware()) == []
    assert resolve(said, Hardware()).spec == resolved
    for field in TASKS[name].open_fields(spec):
        assert getattr(resolved.task, field) is not None


@pytest.mark.parametrize("name", TASKS)
def test_each_task_is_a_module_of_the_same_shape(name: str) -> None:
    """Nothing public but the protocol's names, what the libraries need, and the table's facts."""
    module = TASKS[name]
    assert isinstance(module, ModuleType)
    assert Path(str(module.__file__)).stem == name
    wanted = {n for n in vars(Task) if not n.startswith("_")} | {"FACTS"}
    assert wanted <= vars(module).keys()
    assert set(module.FACTS.over_length) <= set(
        get_args(TrainSpec.model_fields["data"].annotation.model_fields["over_length"].annotation)
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_a_valid_spec(path: Path) -> None:
    from app.jobs.spec import JobSpec

    spec = JobSpec.model_validate(json.loads(path.read_text(encoding="utf-8")))
    assert check(spec.train_spec()) == []


def test_each_task_has_an_example() -> None:
    types = {json.loads(p.read_text(encoding="utf-8"))["task"]["type"] for p in EXAMPLES}
    assert types == TASKS.keys()


def test_tasks_do_not_know_each_other_and_load_lightly() -> None:
    """A fresh interpreter: no heavy library, and numpy and Jinja only where data are prepared."""
    code = (
        "import sys, trainer_core.task\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets', 'pyarrow', 'numpy',"
        " 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=REPOSITORY)
    for name in TASKS:
        source = (REPOSITORY / "trainer_core/tasks" / f"{name}.py").read_text()
        assert "trainer_core.tasks" not in source
