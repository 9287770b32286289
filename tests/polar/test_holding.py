"""Who holds a data folder: one process, and the others are told which, as far as can be known."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polar.stack import proctree
from polar.stack.holding import Held, Holder, held, holder
from polar.stack.home import AlreadyRunning, HalfRestored, Home
from tests.polar.backups import polar
from tests.services import ROOT, wait_until

HOLD = """
import sys, time
from pathlib import Path
from polar.stack.holding import Held, held
try:
    with held(Path(sys.argv[1]), sys.argv[2]):
        print("held", flush=True)
        time.sleep(float(sys.argv[3]))
except Held as other:
    print(other, flush=True)
"""
IN_A_CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def start(
    path: Path, what: str, seconds: float, wrapper: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    arguments = [*wrapper, sys.executable, "-c", HOLD, str(path), what, str(seconds)]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@contextmanager
def another(path: Path, what: str = "polar up") -> Iterator[int]:
    """Another process that holds the lock; yields its pid."""
    process = start(path, what, 600)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def refusal(path: Path) -> str:
    with pytest.raises(Held) as refused, held(path, "me"):
        pass
    assert holder(path) == str(refused.value)  # who only asks is told the same
    return str(refused.value)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    folder = tmp_path / "데이터 폴더"
    folder.mkdir()
    return folder / "stack.lock"


def test_the_holder_is_named_and_ends_with_its_process(lock: Path) -> None:
    assert holder(lock) is None
    with another(lock) as pid:
        assert refusal(lock) == f"polar up, pid {pid}"
        assert refusal(lock) == f"polar up, pid {pid}"  # being refused has changed nothing
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: holder(lock) is None)
    with held(lock, "me"):
        pass
    assert holder(lock) is None


def test_one_of_many_at_the_same_moment_holds_it(lock: Path) -> None:
    processes = [start(lock, f"number {n}", 3) for n in range(6)]
    said = [process.communicate(timeout=60)[0].strip() for process in processes]
    [winner] = [n for n, line in enumerate(said) if line == "held"]
    told = f"number {winner}, pid {processes[winner].pid}"
    assert [line for n, line in enumerate(said) if n != winner] == [told] * 5


@pytest.mark.parametrize("reused", [True, False], ids=["reused pid", "dead pid"])
def test_a_pid_that_is_someone_elses_by_now_is_not_named(lock: Path, *, reused: bool) -> None:
    """As after a boot, or where a child has kept the lock: the kernel says who holds it."""
    with another(lock) as pid:
        said = json.loads(lock.read_text())
        said["identity"] = f"{os.getpid()}:1" if reused else f"{2**22 + 1}:1"
        lock.write_text(json.dumps(said))
        assert refusal(lock) == f"pid {pid}"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"what": "x"}', '{"identity": 5}'])
def test_a_file_that_says_nothing_does_not_hide_the_holder(lock: Path, content: str) -> None:
    with another(lock) as pid:
        lock.write_text(content)
        assert refusal(lock) == f"pid {pid}"


def test_a_holder_of_another_container_is_not_taken_for_one_of_ours(lock: Path) -> None:
    if (
        not shutil.which("unshare")
        or subprocess.run([*IN_A_CONTAINER, "true"], check=False, timeout=10).returncode
    ):
        pytest.skip("namespaces of processes cannot be made here")
    with held(lock, "polar up"):
        ours = Holder.this_process("")
        process = start(lock, "inside", 0, tuple(IN_A_CONTAINER))
        told = process.communicate(timeout=60)[0].strip()
    assert told == (
        f"polar up in another container or on another machine (host name {ours.hostname}, "
        f"pid {os.getpid()} there)"
    )


def test_a_lock_that_is_removed_while_it_is_held_is_nobodys(lock: Path) -> None:
    with held(lock, "first"):
        lock.unlink()
        with held(lock, "second"):
            assert json.loads(lock.read_text())["what"] == "second"


@pytest.mark.sampled
def test_every_command_says_who_works_on_the_folder(tmp_path: Path) -> None:
    """A restore or back-up holds it: nothing starts or stops there, and nothing is laid."""
    home = Home(tmp_path / "데이터 폴더")
    home.run.mkdir(parents=True)
    (home.path / "postgres").mkdir()
    (home.path / "postgres" / "PG_VERSION").touch()
    who = f"polar restore, pid {os.getpid()}"
    target = str(tmp_path / "b")
    addresses = dict.fromkeys(("POLAR_DATABASE_URL", "POLAR_BROKER_URL"), "x")
    before = sorted(home.path.rglob("*"))
    with home.claimed("polar restore", restoring=True):
        for arguments, more in (
            (("up", "--detach"), {}),
            (("down",), {}),
            (("run-sample",), {}),
            (("worker", "join", "--detach"), addresses),
            (("restore", target, "--home", str(home.path)), {}),
            (("backup", target), {}),
        ):
            done = polar(home.path, *arguments, **more)
            assert done.returncode != 0, arguments
            if arguments[0] != "restore":  # there is no back-up to restore
                assert who in done.stdout + done.stderr, (arguments, done.stderr)
        assert f"in use by {who}" in polar(home.path, "status").stdout
        with pytest.raises(AlreadyRunning, match=who), home.claimed("x"):
            pass
    left = {path for path in home.path.rglob("*") if path.name not in ("secrets", "logs")}
    assert left == {*before, home.lock}
    assert not (tmp_path / "b").exists()


def test_a_half_restored_folder_is_refused_under_the_lock_too(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.lay()
    home.restoring.mkdir()
    with pytest.raises(HalfRestored, match="did not end"), home.claimed("polar up"):
        pass
    done = polar(home.path, "up", "--detach")
    assert (done.returncode, "run polar restore again" in done.stderr) == (1, True)
    assert holder(home.lock) is None
    assert proctree.marked("POLAR_HOME", str(home.path)) == []
