"""Ports that another program takes: chosen anew before anybody knows them, or named."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from polar.backup import places
from polar.stack import ports as free
from polar.stack import proctree
from polar.stack.home import Home, choose_ports
from polar.stack.ports import LOOPBACK, free_ports, quiet_ports
from polar.stack.processes import PORTS
from polar.stack.state import last_state
from polar.stack.supervisor import PORT_TRIES
from tests.polar.backups import empty_home, polar
from tests.services import ROOT


def run(home: Home, *arguments: int) -> dict[str, Any]:
    """Start a stack whose port is stolen so many times; see thief.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.polar.thief", str(home.path), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((home.path / "result.json").read_text())
    return found


@pytest.mark.sampled
def test_ports_that_are_taken_meanwhile_are_chosen_anew(tmp_path: Path) -> None:
    home = empty_home(tmp_path / "집 home")
    found = run(home, PORT_TRIES - 1)
    assert (found["code"], len(found["taken"])) == (0, PORT_TRIES - 1)
    state = last_state(home)
    assert state is not None
    port = int(state.url.rpartition(":")[2])
    assert port not in found["taken"]
    assert home.settings()["ports"]["api"] == port  # type: ignore[index]


@pytest.mark.sampled
def test_it_ends_with_the_ports_number_when_they_are_taken_again_and_again(tmp_path: Path) -> None:
    home = empty_home(tmp_path / "home")
    found = run(home, 100)
    assert (found["code"], len(found["taken"])) == (1, PORT_TRIES)
    state = last_state(home)
    assert state is not None
    assert state.phase == "failed"
    assert state.message == (
        f"port {found['taken'][-1]}, which api was to listen on, is taken by another program"
    )


@pytest.mark.sampled
def test_a_stop_is_heard_while_a_start_without_its_port_is_cleared_away(tmp_path: Path) -> None:
    """It does not start again on other ports, and nothing has failed."""
    home = empty_home(tmp_path / "home")
    found = run(home, 100, 0, 1)
    assert (found["code"], len(found["taken"])) == (0, 1)
    state = last_state(home)
    assert state is not None
    assert (state.phase, state.message) == ("stopping", "")


def test_the_port_that_was_asked_for_is_the_only_one(tmp_path: Path) -> None:
    home = empty_home(tmp_path / "home")
    port = quiet_ports(1)[0]
    assert choose_ports(home, PORTS, LOOPBACK, port)["api"] == port
    found = run(home, 1, port)
    assert found["taken"] == [port]
    assert f"port {port} on 127.0.0.1 is taken by another program" in found["refused"]


def test_a_port_that_another_one_had_is_not_given_twice(tmp_path: Path) -> None:
    home = empty_home(tmp_path / "home")
    before = choose_ports(home, PORTS, LOOPBACK)
    asked = before["postgres"]
    after = choose_ports(home, PORTS, LOOPBACK, asked)
    assert after["api"] == asked
    assert len(set(after.values())) == len(PORTS)


@pytest.mark.sampled
def test_up_on_a_taken_port_names_it_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = Home(tmp_path / "데이터 폴더")
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        done = polar(home.path, "up", "--detach", "--port", str(port))
        assert done.returncode == 1
        assert f"port {port} on 127.0.0.1 is taken by another program" in done.stderr
    assert home.holder() is None
    assert proctree.marked("POLAR_HOME", str(home.path)) == []
    for wrong in ("0", "65536", "http"):
        done = polar(home.path, "up", "--detach", "--port", wrong)
        assert (done.returncode, "--port" in done.stderr) == (2, True)


@pytest.mark.sampled
def test_the_service_by_itself_names_a_taken_port(tmp_path: Path) -> None:
    """As in a container: the port is given, and no other will do."""
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app", "serve"],
            env={
                "PATH": os.environ["PATH"],
                "POLAR_HOME": str(tmp_path),
                "POLAR_HOST": LOOPBACK,
                "POLAR_PORT": str(port),
                "POLAR_DATABASE_URL": f"postgresql+psycopg://u:p@127.0.0.1:{free_ports(1)[0]}/d",
                "POLAR_BROKER_URL": "redis://127.0.0.1:1/0",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert str(port) in done.stderr
    assert "address already in use" in done.stderr


@pytest.mark.sampled
def test_services_of_a_backup_choose_other_ports_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as held:
        taken: list[int] = []

        def steal(count: int) -> list[int]:
            chosen = free.quiet_ports(count)
            if not taken:
                taken.append(dict(zip(PORTS, chosen, strict=True))["postgres"])
                held.enter_context(socket.create_server((LOOPBACK, taken[0])))
            return chosen

        monkeypatch.setattr(places, "quiet_ports", steal)
        with places.services(empty_home(tmp_path / "집 home")) as stack:
            assert stack.ports["postgres"] != taken[0]
            assert stack.postgres.is_ready()
