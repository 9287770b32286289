"""Trainer processes: what they see, how whole trees are killed, and with whom they die."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.services import wait_until
from tests.worker import standin
from worker.environment import clean_environment
from worker.process import Order, start
from worker.proctree import Identity, identify, is_alive, kill_tree, tree

ROOT = Path(__file__).parents[2]


def order(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, **more: object) -> Order:
    monkeypatch.setenv("PYTHONPATH", standin.install(tmp_path / "stand-in", source))
    cwd = tmp_path / "시도 att"
    cwd.mkdir(exist_ok=True)
    return Order(["run", "x"], f"att_{tmp_path.name}", cwd, cwd / "output.log", **more)  # type: ignore[arg-type]


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if (who := identify(pid)) and is_alive(who)]


def test_b31_a_trainer_sees_no_secret_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {
        "POLAR_DATABASE_URL": "postgresql+psycopg://polar:hidden-1@h/d",
        "POLAR_S3_SECRET_KEY": "hidden-2",
        "AWS_SECRET_ACCESS_KEY": "hidden-3",
        "AWS_ACCESS_KEY_ID": "hidden-4",
        "HF_TOKEN": "hidden-5",
        "SOMETHING_ELSE": "hidden-6",
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    secrets = {"hub": "hidden-7", "other": "비밀-hidden-8"}
    process = start(order(tmp_path, standin.NOSY, monkeypatch, secrets=secrets), None)
    assert process.wait(20) is not None
    process.close()
    seen = json.loads((tmp_path / "시도 att" / "output.log").read_text())
    assert "hidden" not in json.dumps(seen["environment"]) + json.dumps(seen["argv"])
    assert json.loads(seen["secrets"]) == secrets
    # stdin, stdout, stderr, secrets (closed again by its reader), lifeline, and the listing itself.
    assert len(seen["descriptors"]) == 5


def test_import_time_variables_of_ours_reach_the_trainer() -> None:
    source = {
        "PATH": "/bin",
        "HF_HOME": "/hub",
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "x",
        "HTTPS_PROXY": "http://proxy",
        "POLAR_STACK_PID": "1:2",
        "POLAR_BROKER_URL": "redis://:x@h",
        "LC_ALL": "ko_KR.UTF-8",
    }
    kept = set(source) - {"HF_TOKEN", "POLAR_BROKER_URL"}
    assert set(clean_environment(source)) == kept


def test_a32_b25_the_whole_tree_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM is ignored, a child lives in the session, a grandchild left session and parent."""
    process = start(order(tmp_path, standin.STUBBORN, monkeypatch), None)
    log = tmp_path / "시도 att" / "output.log"
    wait_until(lambda: log.exists() and "ready" in log.read_text())
    mark = f"att_{tmp_path.name}"
    members = tree(process.identity, mark)
    assert len(members) == 3
    process.terminate()
    assert process.wait(0.3) is None
    process.kill()
    assert process.poll() is not None
    assert not any(is_alive(who) for who in members)
    process.close()


def test_a_reused_pid_is_not_killed() -> None:
    innocent = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    who = identify(innocent.pid)
    assert who
    assert kill_tree(Identity(who.pid, who.start - 1), "no such attempt") == set()
    assert is_alive(who)
    innocent.kill()
    innocent.wait()


def test_a_trainer_dies_with_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold start; the supervisor is killed with -9, so that nobody can clean up."""
    order(tmp_path, standin.STUBBORN, monkeypatch)
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from worker.process import Order, start
        cwd = Path(sys.argv[1])
        process = start(Order(["run", "x"], "att_orphan", cwd, cwd / "output.log"), None)
        print(process.identity.pid, flush=True)
        time.sleep(1000)
        """
    )
    cwd = tmp_path / "시도 att"
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(cwd)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert holder.stdout
    trainer = int(holder.stdout.readline())
    wait_until(lambda: "ready" in (cwd / "output.log").read_text())
    who = identify(trainer)
    assert who
    assert alive(trainer)
    members = tree(who, "att_orphan")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    wait_until(lambda: not is_alive(who), timeout=5)
    # Who left the group is found by the attempt's mark when the next attempt begins.
    assert kill_tree(who, "att_orphan") == set()
    assert not any(is_alive(each) for each in members)
