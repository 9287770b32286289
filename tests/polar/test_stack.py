"""The whole embedded stack by its commands: up, status, down, and what must survive."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from polar.stack import control, proctree
from polar.stack.home import Home, choose_ports
from polar.stack.processes import PORTS, TABLE, Stack
from polar.stack.state import StackState, last_state, running_state
from tests.services import ROOT, command_lines, wait_until

NOBODY = 65534
# The test's Python may lie in a folder that only root may enter; the user stays an ordinary one.
AS_NOBODY = [
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
]


@dataclass
class Installation:
    """A data folder and the commands on it."""

    home: Home
    wrapper: list[str] = field(default_factory=list)
    ups: list[subprocess.CompletedProcess[str]] = field(default_factory=list)

    def polar(self, *arguments: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("POLAR_")
        }
        return subprocess.run(
            [*self.wrapper, sys.executable, "-m", "polar", *arguments],
            cwd=ROOT,
            env={
                **environment,
                "POLAR_HOME": str(self.home.path),
                "HOME": str(self.home.path.parent),
            },
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def up(self, *options: str) -> StackState:
        done = self.polar("up", "--detach", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.state()

    def state(self) -> StackState:
        state = running_state(self.home)
        assert state is not None
        return state

    def guard(self) -> proctree.Stat:
        supervisor = proctree.read(int(self.state().identity.partition(":")[0]))
        assert supervisor is not None
        guard = proctree.read(supervisor.parent)
        assert guard is not None
        return guard

    def tree(self) -> list[proctree.Stat]:
        guard = self.guard()
        return [guard, *proctree.descendants(guard.pid)]

    def key(self) -> str:
        return (self.home.secrets / "api-key").read_text().strip()

    def get(self, path: str, key: str | None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.get(self.state().url + path, headers=headers, timeout=20, trust_env=False)

    def database(self) -> psycopg.Connection[tuple[object, ...]]:
        state = self.state()
        ports = self.home.settings()["ports"]
        assert isinstance(ports, dict)
        return Stack(self.home, ports, state.identity).postgres.connect("polar")


def gone(tree: list[proctree.Stat]) -> bool:
    return not any(proctree.is_alive(each.identity) for each in tree)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """One installation for all tests of this file; each leaves the stack as it found it."""
    made = Installation(Home(tmp_path_factory.mktemp("stack") / "데이터 폴더"))
    with ThreadPoolExecutor(2) as pool:  # at the same moment
        ups = [pool.submit(made.polar, "up", "--detach") for _ in range(2)]
        made.ups = [each.result() for each in ups]
    yield made
    made.polar("down")


@pytest.fixture
def running(installation: Installation) -> Installation:
    if running_state(installation.home) is None:
        installation.up()
    return installation


def test_one_of_two_ups_at_the_same_moment_wins(installation: Installation) -> None:
    """The other one names it, and has neither stopped nor taken anything of it."""
    assert sorted(up.returncode for up in installation.ups) == [0, 1]
    [winner] = [up for up in installation.ups if up.returncode == 0]
    [loser] = [up for up in installation.ups if up.returncode == 1]
    pid = installation.state().identity.partition(":")[0]
    assert "POLAR is up" in winner.stdout
    assert "POLAR is up" not in loser.stdout
    assert re.search(rf"(in use by polar up|is starting on .* already), pid {pid}:", loser.stderr)
    assert {each.restarts for each in installation.state().processes.values()} == {0}


def test_every_required_process_is_ready(running: Installation) -> None:
    processes = running.state().processes
    assert set(processes) == {"postgres", "valkey", "s3", *(entry.name for entry in TABLE)}
    required = {name: each.condition for name, each in processes.items() if each.required}
    assert required.pop("migrate") == "done"
    assert set(required.values()) == {"ready"}


def test_status_as_json_says_the_same(running: Installation) -> None:
    done = running.polar("status", "--json")
    assert done.returncode == 0
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["running"] is True
    assert told["url"] == running.state().url


def test_up_again_says_that_it_runs(running: Installation) -> None:
    before = running.state().identity
    done = running.polar("up", "--detach")
    assert done.returncode == 0
    pid = running.state().identity.partition(":")[0]
    assert done.stdout.startswith(f"already running: {running.state().url}, pid {pid}")
    assert running.state().identity == before


def test_only_the_first_key_opens_the_service(running: Installation) -> None:
    assert running.get("/jobs", None).status_code == 401
    assert running.get("/jobs", "wrong").status_code == 401
    assert running.get("/jobs", running.key()).status_code == 200


def test_secrets_are_private_and_in_no_command_line(running: Installation) -> None:
    files = {file.name: file for file in running.home.secrets.iterdir()}
    assert set(files) == {"postgres", "valkey", "s3", "key", "api-key"}
    assert {oct(file.stat().st_mode & 0o777) for file in files.values()} == {"0o600"}
    assert running.home.secrets.stat().st_mode & 0o777 == 0o700
    values = {file.read_text().strip() for name, file in files.items() if name != "s3"}
    values |= set(re.findall(r'Key": "([^"]+)"', files["s3"].read_text()))
    assert len(values) == 6
    assert not [line for line in command_lines() if any(value in line for value in values)]
    for log in (running.home.path / "logs").glob("*.log"):
        text = log.read_text(errors="replace")
        assert not [value for value in values if value in text], log.name


def test_everything_listens_on_loopback_alone(running: Installation) -> None:
    """Every listening TCP socket of every process below the guard, as the kernel tells it."""
    sockets = set()
    for each in running.tree():
        for link in Path(f"/proc/{each.pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[len("socket:[") : -1])
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                listening.append(fields[1].partition(":")[0])
    assert len(listening) >= 4
    assert set(listening) == {"0100007F"}


@pytest.mark.train
def test_the_warm_server_knows_no_secret(running: Installation) -> None:
    pid = running.state().processes["warm"].pid
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    names = {line.partition("=")[0] for line in environment if line}
    assert not names & {"POLAR_DATABASE_URL", "POLAR_BROKER_URL", "POLAR_S3_SECRET_KEY"}
    assert "POLAR_WARM_SOCKET" in names


def test_a_killed_postgres_comes_back_with_its_rows(running: Installation) -> None:
    pid = running.state().processes["postgres"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: (
            (now := running.state().processes["postgres"]).condition == "ready" and now.pid != pid
        ),
        timeout=60,
    )
    answers = wait_until(
        lambda: (answer := running.get("/jobs", running.key())).status_code == 200 and answer,
        timeout=60,
    )
    assert answers.json()["items"] == []


def test_kill_minus_9_of_the_supervisor_leaves_nothing_and_data_survive(
    running: Installation,
) -> None:
    key, ports = running.key(), running.home.settings()["ports"]
    with running.database() as connection:
        before = connection.execute("SELECT count(*) FROM api_keys").fetchone()
    wait_until(lambda: running.state().processes["mlflow"].condition == "ready", timeout=280)
    tree = running.tree()
    assert len(tree) > 15  # Postgres' and MLflow's own children are among them
    os.kill(int(running.state().identity.partition(":")[0]), signal.SIGKILL)
    wait_until(lambda: gone(tree), timeout=60)
    assert running_state(running.home) is None
    running.up()
    assert running.get("/jobs", key).status_code == 200
    assert running.home.settings()["ports"] == ports
    with running.database() as connection:
        assert connection.execute("SELECT count(*) FROM api_keys").fetchone() == before


def test_down_stops_everything(running: Installation) -> None:
    tree = running.tree()
    known = json.loads(running.polar("up", "--json").stdout)
    place = (known["running"], known["home"], known["url"])
    assert place == (True, str(running.home.path), running.state().url)
    told = json.loads(running.polar("env", "--json").stdout)
    assert told["POLAR_URL"] == known["url"]
    assert told["POLAR_API_KEY"] == Path(known["key_file"]).read_text(encoding="utf-8").strip()
    done = running.polar("down", "--json")
    assert (done.returncode, json.loads(done.stdout)["stopped"]) == (0, True)
    assert gone(tree)
    assert running.polar("down").stdout.strip() == "nothing is running"
    assert running.polar("status").returncode == 1


def test_no_auth_is_refused_beyond_loopback(tmp_path: Path) -> None:
    other = Installation(Home(tmp_path / "home"))
    done = other.polar("up", "--detach", "--no-auth", "--listen", "0.0.0.0")  # noqa: S104
    assert done.returncode == 1
    assert "--no-auth would open the service to everyone who reaches 0.0.0.0" in done.stderr
    assert last_state(other.home) is None


def test_a_taken_port_gives_the_next_one(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.lay()
    first = choose_ports(home, PORTS, "127.0.0.1")
    assert len(set(first.values())) == len(PORTS)
    with socket.create_server(("127.0.0.1", first["api"])):
        second = choose_ports(home, PORTS, "127.0.0.1")
    assert second["api"] > first["api"]
    assert {**second, "api": 0} == {**first, "api": 0}


def test_ports_leave_the_users_settings_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.lay()
    home.settings_file.write_text('# mine\ngrace = 5.0\n\n[ports]\napi = 1\n\n[other]\na = "b"\n')
    ports = choose_ports(home, ("valkey",), "127.0.0.1")
    assert home.settings() == {"grace": 5.0, "ports": ports, "other": {"a": "b"}}
    assert home.settings_file.read_text().startswith("# mine\n")


def test_a_stale_state_file_is_no_running_stack(tmp_path: Path) -> None:
    """The pid of the state file lives, but as another process than the one that wrote it."""
    home = Home(tmp_path / "home")
    home.lay()
    state = StackState(identity=f"{os.getpid()}:1", url="http://127.0.0.1:1")
    (home.run / "state.json").write_text(state.model_dump_json())
    assert running_state(home) is None
    assert control.stop(home) is False


def test_a_long_home_gets_a_short_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("긴이름" * 20) / "home")
    socket_path = home.warm_socket()
    assert len(os.fsencode(socket_path)) <= 100
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700
    socket_path.parent.rmdir()
    assert Home(Path("/p")).warm_socket() == Path("/p/run/warm.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
def test_an_ordinary_user_can_run_it(tmp_path: Path) -> None:
    folder = tmp_path / "평범한 사용자"
    folder.mkdir()
    for each in (folder, *tmp_path.parents[:2], tmp_path):
        each.chmod(each.stat().st_mode | 0o011)
    shutil.chown(folder, NOBODY, NOBODY)
    user = Installation(Home(folder / "home"), AS_NOBODY)
    user.up("--no-auth")
    try:
        assert running_state(user.home) is not None
        assert user.get("/jobs", None).status_code == 200
        assert {Path(f"/proc/{each.pid}").stat().st_uid for each in user.tree()} == {NOBODY}
    finally:
        began = time.monotonic()
        assert user.polar("down").returncode == 0
        assert time.monotonic() - began < control.STOP_TIMEOUT
