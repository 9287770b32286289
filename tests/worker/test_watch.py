"""When a trainer is ended though nobody asked. Stand-in trainers: no training is needed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.attempts.service import Intent
from app.jobs.lifecycle import FailureReason
from app.settings import Settings
from tests.services import wait_until
from tests.worker import standin
from tests.worker.test_warm import server as server
from worker import watch
from worker.carrier import Carrier
from worker.environment import clean_environment
from worker.lease import LeaseKeeper
from worker.process import Order, TrainerProcess, start
from worker.proctree import is_alive, tree
from worker.redact import Redactor
from worker.target import ProvisioningFailed
from worker.watch import NoSignOfLife, Watch

MARK = "att_watched"


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, start_timeout=0.6, stall_timeout=0.6, grace=0.4)


@pytest.fixture
def stubborn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerProcess]:
    """A trainer with a tree that ignores SIGTERM, and is ready."""
    monkeypatch.setenv("PYTHONPATH", standin.install(tmp_path / "stand-in", standin.STUBBORN))
    process = start(Order(["run"], MARK, tmp_path, tmp_path / "output.log"), None)
    wait_until(lambda: "ready" in (tmp_path / "output.log").read_text())
    (tmp_path / "output.log").write_text("")  # nothing to carry: these tests have no database
    yield process
    process.kill()
    process.close()


def watching(settings: Settings, process: TrainerProcess) -> Watch:
    wanted = Intent(cancel=False)
    keeper = LeaseKeeper(settings, lambda _: wanted, lambda _: wanted, None)
    carrier = Carrier(settings.home, MARK, "token", Redactor([]))
    return Watch(settings, keeper, carrier, process, lambda _: None)


def test_b15_a_trainer_that_never_begins(quick: Settings, stubborn: TrainerProcess) -> None:
    watched = watching(quick, stubborn)
    members = tree(stubborn.identity, MARK)
    assert len(members) == 3
    assert watched.until_end().code == -9  # SIGTERM was ignored
    assert watched.verdict is not None
    assert watched.verdict.reason is FailureReason.START_TIMEOUT
    assert not any(is_alive(who) for who in members)


def test_b15_a_trainer_that_falls_silent(quick: Settings, stubborn: TrainerProcess) -> None:
    (quick.home / "events.jsonl").write_bytes(b'{"n": 1')  # a sign of life, not yet an event
    watched = watching(quick, stubborn)
    watched.until_end()
    assert watched.verdict is not None
    assert watched.verdict.reason is FailureReason.STALLED


def test_a_job_whose_time_is_up(quick: Settings, stubborn: TrainerProcess) -> None:
    watched = watching(quick, stubborn)
    watched.time_left = 0.1
    watched.until_end()
    assert watched.verdict is not None
    assert watched.verdict.reason is FailureReason.TIME_LIMIT


def test_a_fork_that_does_nothing_is_killed_so_that_it_can_start_cold(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in clean_environment():
        if name.startswith(("HF_", "TRANSFORMERS_", "PYTHONPATH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(watch, "FIRST_SIGN", 0.2)
    process = start(Order(["sleep"], MARK, tmp_path, tmp_path / "elsewhere.log"), server)
    assert process.how == "warm"
    began = time.monotonic()
    with pytest.raises(NoSignOfLife):
        watching(Settings(home=tmp_path), process).until_end()
    assert time.monotonic() - began > 0.1
    assert not is_alive(process.identity)
    process.close()


def test_b14_a_helper_that_cannot_be_killed_changes_nothing_about_the_end(
    quick: Settings, stubborn: TrainerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a helper in uninterruptible sleep does it, which nobody can have on purpose."""

    def withstood() -> None:
        raise ProvisioningFailed("processes that could not be killed: 7")

    watched = watching(quick, stubborn)
    stubborn.kill()
    with monkeypatch.context() as patched:
        patched.setattr(stubborn, "kill", withstood)
        assert watched.until_end().code == -9
    assert watched.cleanup_error == "processes that could not be killed: 7"


@pytest.mark.parametrize("just_now", [[], [7]])
def test_only_a_kill_for_lack_of_memory_of_just_now_is_the_trainers(
    tmp_path: Path,
    stubborn: TrainerProcess,
    monkeypatch: pytest.MonkeyPatch,
    just_now: list[int],
) -> None:
    """The kernel counts for the whole control group; here the count is the test's own."""
    kills = [5]
    monkeypatch.setattr(watch, "oom_kills", lambda: kills[-1])
    watched = watching(Settings(home=tmp_path, start_timeout=3.5, grace=0.2), stubborn)
    kills.append(6)  # another process of the group, long before our trainer ends
    watched.until_end()
    kills += just_now
    assert watched.out_of_memory == bool(just_now)
