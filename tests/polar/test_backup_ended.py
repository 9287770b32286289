"""`polar backup` and `polar restore` told to end, or killed: nothing half-written is left."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from polar.backup.archive import Archive
from polar.backup.places import Place, services
from polar.backup.restore import check
from polar.stack import proctree
from polar.stack.home import Home
from tests.polar.backups import empty_home, polar
from tests.services import ROOT, wait_until


@dataclass
class Taken:
    """An installation that does not run, and a back-up of it."""

    home: Home
    backup: Path


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    folder = tmp_path_factory.mktemp("끝 end")
    home = empty_home(folder / "데이터 폴더")
    with services(home) as stack:
        stack.postgres.ensure_database("polar")
        Place.of_stack(stack).ask(["-m", "app", "migrate"])
    done = polar(home.path, "backup", str(folder / "b"))
    assert done.returncode == 0, done.stderr
    return Taken(home, folder / "b")


def begin(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name[:6] != "POLAR_"}
    return subprocess.Popen(
        [sys.executable, "-m", "polar", *arguments],
        cwd=ROOT,
        env={**environment, "HOME": str(home.parent), "POLAR_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As a terminal starts it, also where these tests run in the background of a shell.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def end(process: subprocess.Popen[str], number: signal.Signals, when: Callable[[], object]) -> str:
    """Signal it twice when its moment has come; returns what it said."""
    wait_until(lambda: process.poll() is not None or when(), timeout=120)
    assert process.poll() is None, process.communicate()
    below = proctree.descendants(process.pid)
    process.send_signal(number)
    if number is not signal.SIGKILL:
        process.send_signal(number)  # an impatient one: the cleaning up goes on
    _, said = process.communicate(timeout=120)
    wait_until(lambda: not any(proctree.is_alive(each.identity) for each in below))
    return said


def drafts(target: Path) -> list[Path]:
    return list(target.parent.glob(f".{target.name}.*.partial"))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["b", "b.tar"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_backup_that_is_told_to_end_leaves_nothing(
    taken: Taken, tmp_path: Path, number: signal.Signals, name: str
) -> None:
    target = tmp_path / "백업 폴더" / name
    process = begin(taken.home.path, "backup", str(target))
    said = end(process, number, lambda: drafts(target))
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; nothing was written" in said
    assert list(target.parent.iterdir()) == []
    assert taken.home.holder() is None
    assert not (taken.home.path / "postgres" / "postmaster.pid").exists()  # it ended in order


@pytest.mark.sampled
def test_a_backup_whose_terminal_is_closed_leaves_nothing(taken: Taken, tmp_path: Path) -> None:
    target = tmp_path / "b"
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name[:6] != "POLAR_"}
    process = subprocess.Popen(
        [sys.executable, "-m", "polar", "backup", str(target)],
        cwd=ROOT,
        env={**environment, "POLAR_HOME": str(taken.home.path)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    wait_until(lambda: process.poll() is not None or drafts(target), timeout=120)
    below = proctree.descendants(process.pid)
    os.close(ours)
    assert process.wait(120) == 128 + signal.SIGHUP
    assert list(tmp_path.iterdir()) == []
    assert not any(proctree.is_alive(each.identity) for each in below)


@pytest.mark.sampled
@pytest.mark.slow
def test_what_a_killed_backup_has_left_goes_with_the_next_one(taken: Taken, tmp_path: Path) -> None:
    target, other = tmp_path / "b [1]*", tmp_path / "other"
    process = begin(taken.home.path, "backup", str(target))
    end(process, signal.SIGKILL, lambda: list(tmp_path.glob(".b*/draft")))
    [left] = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    foreign = tmp_path / f".{other.name}.00000000.partial"  # of a back-up to another place
    foreign.mkdir()
    done = polar(taken.home.path, "backup", str(target))
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.iterdir()) == sorted([target, foreign])
    check(Archive(target), lambda *_: None)


@pytest.mark.sampled
@pytest.mark.parametrize("existed", [True, False], ids=["empty folder", "no folder"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_restore_that_is_told_to_end_leaves_the_folder_as_it_was(
    taken: Taken, tmp_path: Path, number: signal.Signals, *, existed: bool
) -> None:
    home = Home(tmp_path / "새 집")
    if existed:
        home.path.mkdir()
    process = begin(home.path, "restore", str(taken.backup))
    said = end(process, number, (home.restoring / "postgres" / "PG_VERSION").exists)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; {home.path} is as it was" in said
    assert home.path.exists() == existed
    assert list(tmp_path.rglob("*")) == ([home.path] if existed else [])


@pytest.mark.sampled
@pytest.mark.slow
def test_what_a_killed_restore_has_left_is_no_installation_and_is_restored_over(
    taken: Taken, tmp_path: Path
) -> None:
    home = Home(tmp_path / "새 집")
    process = begin(home.path, "restore", str(taken.backup))
    end(process, signal.SIGKILL, (home.restoring / "postgres" / "PG_VERSION").exists)
    assert home.restoring.exists()
    for command in (("up", "--detach"), ("backup", str(tmp_path / "x"))):
        done = polar(home.path, *command)
        assert (done.returncode, (tmp_path / "x").exists()) == (1, False)
    done = polar(home.path, "restore", str(taken.backup))
    assert done.returncode == 0, done.stderr
    assert {each.name for each in home.path.iterdir()} == {"postgres", "s3", "secrets"}


@pytest.mark.sampled
def test_one_that_was_killed_while_it_moved_is_refused(taken: Taken, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.restoring / "s3").mkdir(parents=True)
    (home.path / "postgres").mkdir()
    (home.path / "postgres" / "PG_VERSION").touch()
    done = polar(home.path, "restore", str(taken.backup))
    assert (done.returncode, "delete that folder and restore again" in done.stderr) == (1, True)
    done = polar(home.path, "backup", str(tmp_path / "b"))
    assert (done.returncode, "did not end" in done.stderr) == (1, True)
    assert (home.restoring / "s3").exists()


@pytest.mark.sampled
def test_a_stack_that_comes_first_is_not_restored_over(taken: Taken, tmp_path: Path) -> None:
    """Nor is what it has laid removed when the restore gives up."""
    home = empty_home(tmp_path / "home")
    with home.claimed("polar up"):
        done = polar(home.path, "restore", str(taken.backup))
    assert done.returncode == 1
    assert f"in use by polar up, pid {os.getpid()}" in done.stderr
    assert {each.name for each in home.path.iterdir()} == {"logs", "run", "secrets"}
    done = polar(home.path, "restore", str(taken.backup))
    assert (done.returncode, "is not empty" in done.stderr) == (1, True)
    assert home.lock.exists()


def test_b33_a_backup_in_the_data_folder_or_around_it_is_refused(
    taken: Taken, tmp_path: Path
) -> None:
    home = taken.home.path
    link = tmp_path / "link"
    link.symlink_to(home)
    before = sorted(home.rglob("*"))
    for target, words in (
        (home / "b", "is in the data folder"),
        (home / "models" / "더 깊이" / "b.tar", "is in the data folder"),
        (home, "is in the data folder"),
        (link / "b", "is in the data folder"),
        (home.parent / "x" / ".." / home.name / "b", "is in the data folder"),
        (home.parent, "name a place outside of it"),
        (Path("/"), "name a place outside of it"),
    ):
        done = polar(home, "backup", str(target))
        assert done.returncode == 1, target
        assert words in done.stderr, (target, done.stderr)
    assert sorted(home.rglob("*")) == before
    inside = taken.backup / "home"
    done = polar(inside, "restore", str(taken.backup))
    assert (done.returncode, "is in the back-up itself" in done.stderr) == (1, True)
    check(Archive(taken.backup), lambda *_: None)
    assert not inside.exists()
