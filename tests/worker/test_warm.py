"""The fork server's manners; its work is in test_supervisor. No training stack is needed here."""

import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.services import wait_until
from worker import forks
from worker.forks import ForkRequest, NoWarmServer
from worker.process import Order, start
from worker.proctree import is_alive

ROOT = Path(__file__).parents[2]

# The server without its preload, and with a trainer that does what its first argument says.
PROGRAM = textwrap.dedent(
    """
    import json, os, sys, time, types
    from pathlib import Path
    from worker import warm

    def main(argv):
        if argv[0] == "look":
            secrets = os.fdopen(int(os.environ["POLAR_SECRETS_FD"])).read()
            print(json.dumps({
                "environment": dict(os.environ), "secrets": secrets, "session": os.getsid(0),
                "pid": os.getpid(), "cwd": os.getcwd(), "stdin": os.read(0, 10).decode(),
                "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd")),
            }))
            return 0
        if argv[0] == "sleep":
            print("sleeping", flush=True)
            time.sleep(1000)
        if argv[0] == "raise":
            raise RuntimeError("unforeseen")
        return int(argv[0])

    def preload():
        sys.modules["standin"] = types.SimpleNamespace(main=main)
        warm.ROLES["trainer"] = "standin"

    warm._preload_trainers = preload
    sys.exit(warm.serve(Path(sys.argv[1])))
    """
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("포크 server") / "run" / "warm.sock"
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "LEAKED": "secret"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, env=environment
    )
    try:
        wait_until(lambda: forks.ping(path))
        yield path
    finally:
        process.terminate()
        assert process.wait(10) == 0
        assert not path.exists()


@pytest.fixture
def make_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [n for n in os.environ if n.startswith(("HF_", "TRANSFORMERS_", "PYTHONPATH"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def make(*argv: str) -> Order:
        return Order(argv, "att_warm", tmp_path, tmp_path / "out", {"hub": "비밀"})

    return make


def test_a_child_has_its_own_session_and_only_what_it_was_given(
    server: Path, make_order: Any, tmp_path: Path
) -> None:
    process = start(make_order("look"), server)
    assert process.how == "warm"
    ended = process.wait(10)
    assert ended is not None
    assert ended.code == 0
    process.close()
    seen = json.loads((tmp_path / "out").read_text())
    assert json.loads(seen["secrets"]) == {"hub": "비밀"}
    assert seen["session"] == seen["pid"] == process.identity.pid
    assert seen["cwd"] == str(tmp_path)
    assert seen["stdin"] == ""
    assert "LEAKED" not in seen["environment"]
    # stdin, stdout, stderr, lifeline and the listing itself; the secrets are read and closed.
    assert seen["descriptors"] == [0, 1, 2, 3, 4]


def test_the_server_has_thrown_off_what_trainers_must_not_see(server: Path) -> None:
    with forks.connect(server, 2) as client:
        client.sendall(b'{"op": "ping"}\n')
        answer = forks.read_line(client)
    assert answer
    assert b"LEAKED" not in Path(f"/proc/{answer['pid']}/environ").read_bytes()
    assert len(list(Path(f"/proc/{answer['pid']}/task").iterdir())) == 1


@pytest.mark.parametrize(("argv", "code"), [("0", 0), ("75", 75), ("raise", 70)])
def test_exit_codes_are_told(server: Path, make_order: Any, argv: str, code: int) -> None:
    process = start(make_order(argv), server)
    ended = process.wait(10)
    assert ended is not None
    assert ended.code == code
    process.close()


def test_a_kill_is_told_as_the_signal(server: Path, make_order: Any) -> None:
    process = start(make_order("sleep"), server)
    process.kill()
    ended = process.wait(10)
    assert ended is not None
    assert ended.code == -9
    process.close()


def test_closing_the_lifeline_kills_the_trainer(server: Path, make_order: Any) -> None:
    process = start(make_order("sleep"), server)
    process.close()
    wait_until(lambda: not is_alive(process.identity), timeout=5)


def test_a_trainer_with_other_import_time_variables_starts_cold(
    server: Path, make_order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    process = start(make_order("--help"), server)
    assert process.how == "cold"
    process.kill()
    process.close()


def test_without_a_server_it_starts_cold(make_order: Any, tmp_path: Path) -> None:
    process = start(make_order("--help"), tmp_path / "nobody.sock")
    assert process.how == "cold"
    process.kill()
    process.close()


def test_only_our_own_user_may_connect(server: Path) -> None:
    assert stat.S_IMODE(server.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.parent.stat().st_mode) == 0o700


def test_nonsense_does_not_disturb_the_server(server: Path) -> None:
    for nonsense in (b"x\n", b"{}\n", b'{"op": "fork", "kind": "trainer"}\n', b"[1]\n"):
        with forks.connect(server, 2) as client:
            client.sendall(nonsense)
            answer = forks.read_line(client)
            assert answer is not None
            assert "error" in answer
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server))  # and hangs up without a word
    request = ForkRequest("trainer", ["0"], "/", "/dev/null", {})
    with pytest.raises(NoWarmServer):
        forks.fork(server, request, [0])  # HF_HUB_OFFLINE is missing
    assert forks.ping(server)


def test_supervisors_come_from_a_light_part_that_ends_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "warm.sock"
    light = forks.supervisors_path(path)
    environment = {"PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, env=environment
    )
    try:
        wait_until(lambda: forks.ping(path) and forks.ping(light))
        request = ForkRequest("trainer", ["0"], str(tmp_path), str(tmp_path / "out"))
        private = forks.memory_file({})
        with pytest.raises(NoWarmServer, match="unknown request"):
            forks.fork(light, request, [private])
        os.close(private)
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: not light.exists())
    assert not forks.ping(light)


def test_two_lines_that_come_together_are_two_answers():
    """A process that ends at once is told of with the answer that it was started."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"pid": 7, "start": 9}\n{"exit": 0}\n')
        assert forks.read_line(ours) == {"pid": 7, "start": 9}
        assert forks.read_line(ours) == {"exit": 0}
        theirs.close()
        assert forks.read_line(ours) is None


def _pid(server: Path) -> int:
    with forks.connect(server, 2) as client:
        client.sendall(b'{"op": "ping"}\n')
        answer = forks.read_line(client)
    assert answer
    return int(answer["pid"])


def _spare(server: Path) -> psutil.Process | None:
    """The child that waits: the only one in the server's own session besides the light server."""
    pid = _pid(server)
    light = _pid(forks.supervisors_path(server))
    for child in psutil.Process(pid).children():
        if child.pid != light and os.getsid(child.pid) == os.getsid(pid):
            return child
    return None


def test_the_next_child_is_forked_ahead_and_a_killed_one_is_replaced(
    server: Path, make_order: Any
) -> None:
    spare = wait_until(lambda: _spare(server))
    assert spare
    process = start(make_order("sleep"), server)
    assert process.identity.pid == spare.pid
    other = wait_until(lambda: _spare(server))
    assert other
    assert other.pid != spare.pid
    other.kill()
    other.wait(5)
    third = start(make_order("0"), server)
    ended = third.wait(10)
    assert ended
    assert ended.code == 0
    for each in (process, third):
        each.kill()
        each.close()


def test_the_spare_ends_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "warm.sock"
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, env=environment
    )
    try:
        wait_until(lambda: forks.ping(path))
        spare = wait_until(lambda: _spare(path))
        assert spare
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: not spare.is_running() or spare.status() == psutil.STATUS_ZOMBIE)
