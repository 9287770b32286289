"""A trainer of a service keeps its own part of the data folder, and touches nobody else."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.settings import Settings
from tests.services import ROOT
from trainer_core import landlock
from worker.environment import bounds, clean_environment, memory_bound

TRIES = """
import json, os, pathlib, resource, signal, sys, tempfile
from trainer_core import confine
launch = pathlib.Path(sys.argv[1])
confine.confine(launch)
home, parent = pathlib.Path(os.environ["POLAR_KEEP_OUT"]), os.getppid()

def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"

def write(path):
    path.write_text("x")

def child():
    import subprocess
    done = subprocess.run(["cat", home / "secrets" / "key"], capture_output=True)
    if done.returncode:
        raise PermissionError

print(json.dumps({
    "secrets": attempt((home / "secrets" / "key").read_bytes),
    "by a child": attempt(child),
    "postgres": attempt((home / "postgres" / "base").read_bytes),
    "list": attempt(lambda: list(home.iterdir())),
    "others": attempt((home / "attempts" / "att_other" / "launch.json").read_bytes),
    "new": attempt(lambda: (home / "new").mkdir()),
    "link": attempt((launch.parent / "link").read_bytes),
    "environ": attempt(pathlib.Path(f"/proc/{parent}/environ").read_bytes),
    "memory": attempt(lambda: open(f"/proc/{parent}/mem", "rb").close()),
    "signal": attempt(lambda: os.kill(parent, 0)),
    "own signal": attempt(lambda: os.kill(os.getpid(), 0)),
    "work": attempt(lambda: write(launch.parent / "out")),
    "named": attempt(pathlib.Path(json.loads(launch.read_text())["paths"]["model"]).read_bytes),
    "data": attempt((home / "open data" / "rows.jsonl").read_bytes),
    "prepared": attempt(lambda: write(home / "prepared" / "x")),
    "hub": attempt(lambda: (home / "hub" / "a" / "b").mkdir(parents=True)),
    "temporary": attempt(lambda: tempfile.NamedTemporaryFile().close()),
    "code": attempt(pathlib.Path(confine.__file__).read_bytes),
    "mode": oct((launch.parent / "out").stat().st_mode & 0o777),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "memory limit": resource.getrlimit(resource.RLIMIT_DATA)[0],
    "privileges": "NoNewPrivs:\\t1" in pathlib.Path("/proc/self/status").read_text(),
}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "데이터 폴더"
    for name, text in {
        "secrets/key": "CANARY",
        "postgres/base": "CANARY",
        "attempts/att_other/launch.json": "CANARY",
        "elsewhere/model": "weights",
        "open data/rows.jsonl": "{}",
    }.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    work = home / "attempts" / "att_mine"
    work.mkdir()
    (work / "link").symlink_to(home / "secrets" / "key")
    paths = {
        "work": str(work),
        "model": str(home / "elsewhere" / "model"),
        "data_folders": [str(home / "open data"), "/"],
    }
    # Names of objects are words of others: none of them opens anything.
    named = {"name": str(home / "secrets" / "key"), "size": 6, "version": "1"}
    lent = {"train/0": {"alone": True, "objects": [named]}}
    (work / "launch.json").write_text(json.dumps({"spec": {}, "paths": paths, "lent": lent}))
    return home


def run(home: Path, settings: Settings) -> dict[str, Any]:
    launch = home / "attempts" / "att_mine" / "launch.json"
    variables = bounds(settings, launch.parent) | memory_bound(settings)
    environment = clean_environment() | variables | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(launch)],
        env={**environment, "HF_HOME": str(home / "hub")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")
def test_b34_a_trainer_reaches_only_its_own_part_of_the_data_folder(home: Path) -> None:
    found = run(home, Settings(home=home, prepare_memory_gb=3))
    open_ = {name: what for name, what in found.items() if what == "done"}
    assert set(open_) == {
        *("own signal", "work", "named", "data", "prepared", "hub", "temporary", "code"),
        *(() if landlock.version() >= 6 else ("signal",)),
    }
    assert {found[n] for n in ("secrets", "environ", "memory", "by a child", "link", "others")} == {
        "PermissionError"
    }
    assert found["mode"] == "0o600"
    assert found["core"] == [0, 0]
    assert found["memory limit"] == 3 * 2**30
    assert found["privileges"] is True


def test_a_kernel_without_landlock_is_said_and_the_rest_holds(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a fork of this process, whose limits must not stay."""
    from trainer_core import confine

    def refuse(_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setenv("POLAR_KEEP_OUT", str(home))
    monkeypatch.setattr(landlock, "restrict_to", refuse)
    pid = os.fork()
    if pid == 0:
        confine.confine(home / "attempts" / "att_mine" / "launch.json")
        os._exit(0 if resource.getrlimit(resource.RLIMIT_CORE) == (0, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "files are not confined on this kernel: [Errno 38]" in capfd.readouterr().err


def test_a_persons_own_run_is_not_confined(tmp_path: Path) -> None:
    code = "import os, pathlib; from trainer_core import confine; before = os.umask(0)\n"
    code += "os.umask(before); confine.confine(pathlib.Path('x')); assert os.umask(0) == before"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PATH": os.environ["PATH"]}, check=False
    )
    assert done.returncode == 0
    del tmp_path
