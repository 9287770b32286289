"""The service loads without the training stack: a fresh interpreter opens each module and looks."""

import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

import app
import worker
from tests.services import ROOT

HEAVY = [
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "mlflow",
    "pyarrow",
    "sagemaker",
    "vastai",
]
PROGRAM = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""


def loaded(module: str) -> list[str]:
    """Return which heavy packages a fresh interpreter has after importing the module."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *HEAVY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def entry_points() -> Iterator[str]:
    """What is started as a process, and what describes specs."""
    yield from ("app.main", "app.__main__", "trainer_core.spec", "trainer_core.capabilities")
    yield from ("worker.__main__", "worker.celery_app", "worker.reconciler", "worker.supervisor")


@pytest.mark.parametrize("module", list(entry_points()))
def test_processes_of_the_service_load_without_the_training_stack(module: str) -> None:
    assert loaded(module) == []


def test_no_module_of_the_service_loads_it_either() -> None:
    """All modules of app and worker in one interpreter, so that none hides behind another."""
    names = [
        info.name
        for package in (app, worker)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not info.name.endswith("__main__")
    ]
    program = "import importlib, json, sys\n"
    program += "heavy, names = json.loads(sys.argv[1])\n"
    program += "for name in names: importlib.import_module(name)\n"
    program += "print(json.dumps([h for h in heavy if h in sys.modules]))\n"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([HEAVY, names])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []
