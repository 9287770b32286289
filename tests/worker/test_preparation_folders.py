"""Each lease of a preparation has a folder of its own; who holds the last one clears up."""

from pathlib import Path

import pytest

from app.db import transaction
from app.preparations.service import (
    claim_preparation,
    preparation_intent,
    renew_preparation,
)
from app.settings import Settings
from app.storage import Store
from tests.worker.world import add_job, one, run_sql
from worker.lease import LeaseKeeper
from worker.supervisor_prepare import PreparationSupervisor


def supervisor(settings: Settings, job: str, token: str) -> PreparationSupervisor:
    keeper = LeaseKeeper(
        settings,
        renew=lambda session: renew_preparation(session, job, token),
        look=lambda session: preparation_intent(session, job, token),
        stack=None,
    )
    keeper.start()
    return PreparationSupervisor(settings, Store(settings), (job, token), keeper)


def claimed(job: str) -> str:
    with transaction() as session:
        token = claim_preparation(session, job, "h1")
    assert token is not None
    return token


def folder(settings: Settings, job: str, token: str) -> Path:
    path = settings.home / "preparations" / f"{job}.{token[:8]}"
    path.mkdir(parents=True)
    (path / "launch.json").write_text("{}")
    return path


@pytest.fixture
def job(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(settings, "lease", 0.001)
    return add_job(prepared=False)


def test_b26_a_lease_that_was_lost_leaves_its_successors_folder_alone(settings: Settings, job: str):
    lost = claimed(job)
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 s'")
    held = claimed(job)
    old, new = folder(settings, job, lost), folder(settings, job, held)
    thawed = supervisor(settings, job, lost)
    thawed._keeper.lose()
    thawed.run()
    assert not old.exists()
    assert (new / "launch.json").exists()
    assert one("SELECT lease_token FROM preparations") == held


def test_the_last_holder_clears_up_after_killed_ones(settings: Settings, job: str):
    lost = claimed(job)
    run_sql("UPDATE preparations SET lease_expires_at = now() - interval '1 s'")
    held = claimed(job)
    old, new = folder(settings, job, lost), folder(settings, job, held)
    other = folder(settings, add_job(prepared=False), held)
    last = supervisor(settings, job, held)
    last._keeper.abandon()  # it is told to end: the job waits for another one
    last.run()
    assert (old.exists(), new.exists(), other.exists()) == (False, False, True)
    assert one("SELECT status FROM preparations WHERE job_id = :job", job=job) == "waiting"
