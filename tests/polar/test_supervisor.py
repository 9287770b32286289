"""The supervisor: order, restarts with back-off, and nothing left behind, whoever is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from polar.stack import control, proctree
from polar.stack.home import Home
from polar.stack.state import StackState, running_state
from polar.stack.supervisor import back_off
from tests.services import ROOT, wait_until

MARK = "STANDIN_STACK"


class StandIn:
    """The stand-in stack as a process tree of its own."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = str(ROOT / "tests" / "polar" / "standin.py")
        command = ["polar.stack.guard", sys.executable, script, str(self.home.path)]
        self.guard = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: str(self.home.path)},
            start_new_session=True,
        )

    def ready(self) -> StackState:
        def is_ready() -> StackState | None:
            state = running_state(self.home)
            return state if state and state.phase == "ready" else None

        return wait_until(is_ready)

    def tree(self) -> list[proctree.Stat]:
        """Guard, supervisor, processes and all that they started, while they live."""
        assert self.guard is not None
        return [
            *filter(None, [proctree.read(self.guard.pid)]),
            *proctree.descendants(self.guard.pid),
        ]

    def ended(self) -> int:
        assert self.guard is not None
        return self.guard.wait(90)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StandIn]:
    stand_in = StandIn(Home(tmp_path / "데이터 폴더"))
    stand_in.home.lay()
    yield stand_in
    if stand_in.guard and stand_in.guard.poll() is None:
        proctree.kill_below(stand_in.guard.pid)
        stand_in.guard.kill()
        stand_in.guard.wait()


def whole_tree(stack: StandIn) -> list[proctree.Stat]:
    """Guard, supervisor, four processes and the forker's three children, two of them holders."""

    def is_whole() -> list[proctree.Stat]:
        tree = stack.tree()
        holders = [each for each in tree if each.name == "polar-lease"]
        return tree if (len(tree), len(holders)) == (9, 2) else []

    return wait_until(is_whole)


def gone(tree: list[proctree.Stat]) -> bool:
    return not any(proctree.is_alive(each.identity) for each in tree)


def test_starts_in_order_and_stops_in_reverse(stack: StandIn) -> None:
    stack.start()
    stack.ready()
    tree = whole_tree(stack)
    assert control.stop(stack.home)
    assert stack.ended() == 0
    lines = (stack.home.path / "logs" / "order").read_text().splitlines()
    stops = ["detached stops", "second stops", "first stops"]
    assert lines == ["first starts", "second starts", *stops]
    assert gone(tree)


@pytest.mark.parametrize("victim", ["supervisor", "guard"])
def test_kill_minus_9_leaves_nothing(stack: StandIn, victim: str) -> None:
    """The detached grandchildren are killed too, one of which ignores SIGTERM."""
    stack.start()
    supervisor = int(stack.ready().identity.partition(":")[0])
    tree = whole_tree(stack)
    assert stack.guard is not None
    os.kill(supervisor if victim == "supervisor" else stack.guard.pid, signal.SIGKILL)
    wait_until(lambda: gone(tree))
    assert stack.ended() == (137 if victim == "supervisor" else -signal.SIGKILL)
    assert running_state(stack.home) is None


def test_what_a_killed_process_leaves_goes_before_it_comes_back(stack: StandIn) -> None:
    """Its child would hold its port; holders of leases have sessions of their own and stay."""
    stack.start()
    first = stack.ready().processes["forker"]
    children = [each for each in whole_tree(stack) if each.parent == first.pid]
    holders = [each for each in children if each.name == "polar-lease"]
    [own] = [each for each in children if each not in holders]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)

    def again() -> bool:
        state = running_state(stack.home)
        return state is not None and state.processes["forker"].pid not in (None, first.pid)

    wait_until(again)
    assert not proctree.is_alive(own.identity)
    assert all(proctree.is_alive(each.identity) for each in holders)


def test_an_ended_process_comes_back_with_growing_pauses(stack: StandIn) -> None:
    assert [back_off(ends) for ends in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    stack.start()
    stack.ready()
    (stack.home.path / "logs" / "flap").touch()
    starts = stack.home.path / "logs" / "starts"
    wait_until(lambda: len(starts.read_text().splitlines()) >= 4)
    (stack.home.path / "logs" / "flap").unlink()
    times = [float(line) for line in starts.read_text().splitlines()]
    pauses = [later - earlier for earlier, later in pairwise(times[1:4])]
    assert pauses[0] >= back_off(2)
    assert pauses[1] >= back_off(3)
    state = wait_until(
        lambda: now if (now := stack.ready()).processes["flapper"].condition == "ready" else None
    )
    assert state.processes["flapper"].restarts >= 3
    assert state.processes["second"].restarts == 0


def test_a_killed_process_is_started_again(stack: StandIn) -> None:
    stack.start()
    pid = stack.ready().processes["first"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    again = wait_until(
        lambda: now if (now := stack.ready().processes["first"]).restarts == 1 and now.pid else None
    )
    assert again.pid != pid


def test_a_required_process_that_keeps_ending_fails_the_start(stack: StandIn) -> None:
    (stack.home.path / "broken").touch()
    stack.start()
    assert stack.ended() == 1
    state = control.last_state(stack.home)
    assert state is not None
    assert state.phase == "failed"
    assert state.message.startswith("broken ended with code 3; see ")


def test_leftovers_of_a_dead_stack_are_cleared(stack: StandIn) -> None:
    """Should guard and supervisor be killed at once, the next start ends what they left."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    identity = proctree.identity(dead.pid)
    dead.wait()
    control_state = StackState(identity=identity, url="")
    (stack.home.run / "state.json").write_text(control_state.model_dump_json())
    left = subprocess.Popen(["sleep", "600"], env={control.STACK_VARIABLE: identity})
    assert control.clear_leftovers(stack.home) == 1
    assert left.wait(10) == -signal.SIGKILL
