"""Making the environment: done once, remade when an input changes, clear about what is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import bootstrap
from tests.services import ROOT


class Usage(NamedTuple):
    free: int


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bootstrap.Setup:
    """A project in a path with Korean letters, whose environment looks finished."""
    root = tmp_path / "새 프로젝트"
    root.mkdir()
    for name in ("pyproject.toml", "requirements.lock", "bootstrap.py"):
        shutil.copy(ROOT / name, root)
    monkeypatch.setattr(bootstrap, "ROOT", root)
    made = bootstrap.Setup(root / ".venv", "full")
    made.python.parent.mkdir(parents=True)
    made.python.touch()
    made.stamp.write_text(made.identity(), encoding="utf-8")
    return made


def test_nothing_happens_when_it_is_there(setup: bootstrap.Setup) -> None:
    assert setup.is_done()


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock", "bootstrap.py"])
def test_a_changed_input_makes_it_again(setup: bootstrap.Setup, name: str) -> None:
    with (bootstrap.ROOT / name).open("a") as file:
        file.write("\n")
    assert not setup.is_done()


def test_an_interrupted_set_up_is_not_done(setup: bootstrap.Setup) -> None:
    setup.stamp.unlink()
    assert not setup.is_done()


def test_profiles_are_different_environments(setup: bootstrap.Setup) -> None:
    assert bootstrap.Setup(setup.venv, "service").identity() != setup.identity()


def test_a_full_disk_is_said_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=1_000_000_000))
    with pytest.raises(bootstrap.Missing, match=r"needs 4\.0 GB and .* has 1\.0 GB free"):
        bootstrap.check_disk(4e9)


def test_a_python_without_venv_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(bootstrap.Missing, match=r"apt-get install python3\.\d+-venv"):
        bootstrap.check_python()


@pytest.mark.parametrize(("cuda", "build"), [(False, "2.13.0+cpu"), (True, "2.13.0+cu130")])
def test_a_local_torch_must_fit(
    setup: bootstrap.Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cuda: bool,  # noqa: FBT001 - a parameter of the test
    build: str,
) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = os.uname().machine
    for version in ("2.13.0+cpu", "2.13.0+cu130", "2.14.1"):
        (tmp_path / f"torch-{version}-{python}-{python}-manylinux_2_28_{machine}.whl").touch()
    (tmp_path / f"torch-2.13.0-cp36-cp36-manylinux_2_28_{machine}.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", f"/nonexistent {tmp_path}")
    setup.cuda = cuda
    found = setup.local_torch()
    assert found is not None
    assert found.name.split("-")[1] == build


def test_pips_settings_reach_uv(setup: bootstrap.Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_FIND_LINKS", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", "/a /b")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    given = setup.environment()
    assert given["UV_FIND_LINKS"] == "/a,/b"
    assert given["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"


def test_a_failed_step_shows_the_end_of_its_output(
    setup: bootstrap.Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    setup.python = Path(sys.executable)
    failing: Callable[[], None] = lambda: setup.run("-c", "raise SystemExit('no such index')")  # noqa: E731
    with pytest.raises(bootstrap.Missing, match="no such index"):
        setup.step("dependencies", failing)
    assert capsys.readouterr().out == "  dependencies … "


def test_the_lock_names_no_address_and_no_torch() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert all("==" in line for line in lines)
    assert not [
        line for line in lines if "://" in line or "@" in line or line.startswith("torch==")
    ]
    assert "transformers==5.17.0" in lines


@pytest.mark.parametrize("target", ["run", "test", "check", "up", "down", "openapi", "bench"])
def test_every_target_of_make_is_there(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "bootstrap.py" in done.stdout
