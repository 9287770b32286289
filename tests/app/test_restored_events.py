"""After a restore no event id is given out twice, and clients of the lost world miss nothing."""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

import app.db
import app.events.archiving as archiving
from app.backups.service import settle
from app.db import transaction
from app.events.frames import Form
from app.events.service import start_of_job
from app.events.source import JobSource
from app.events.store import append_events
from app.health.gauges import _QUERY
from app.jobs.lifecycle import Change, FailureReason, Status, transition
from app.settings import Settings, get_settings
from app.storage import Store
from tests.services import S3

PROJECT, OPEN, ENDED = "prj_default", "job_open", "job_ended"
LINE = {"type": "log", "data": {"level": "info", "message": "x"}}


@pytest.fixture
def _database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database with an open job of 107 events, and one of 3 that has ended."""

    def forget() -> None:
        for cached in (app.db.get_engine, app.db._autocommit, get_settings):
            cached.cache_clear()

    monkeypatch.setenv("POLAR_DATABASE_URL", database_url)
    forget()
    with transaction() as session:
        for job in (OPEN, ENDED):
            insert = (
                "INSERT INTO jobs (id, project_id, name, task_type, backend, target, spec,"
                " resolved, max_attempts)"
                " VALUES (:job, :project, 'n', 'sft', 'hf', 'local', '{}', '{}', 1)"
            )
            session.execute(text(insert), {"job": job, "project": PROJECT})
        append_events(session, OPEN, [LINE] * 107)
        append_events(session, ENDED, [LINE] * 2)
        fail(session, ENDED)
    yield
    app.db.get_engine().dispose()
    forget()


def fail(session: Session, job: str) -> None:
    assert transition(session, job, Status.FAILED, Change(FailureReason.INTERNAL, "over"))


def read(job: str, cursor: str) -> str:
    """Return what a client gets that has read up to this id."""
    with transaction() as session:
        start = start_of_job(session, PROJECT, job, cursor)
        return JobSource(PROJECT, job).read(session, start.after, None, 1000, Form.ITEMS).body


def numbers(job: str) -> list[int]:
    query = "SELECT seq FROM job_events WHERE job_id = :job ORDER BY seq"
    with transaction() as session:
        return list(session.scalars(text(query), {"job": job}))


@pytest.mark.usefixtures("_database")
def test_a_cursor_of_the_lost_world_gets_all_of_the_new_one() -> None:
    """458 was the client's newest id; the back-up knew 107."""
    before = int(time.time() * 1000)
    with transaction() as session:
        assert settle(session) == 0
    with transaction() as session:
        append_events(session, OPEN, [LINE] * 400)
    for cursor in ("458", "107"):
        body = read(OPEN, cursor)
        assert body.count('"type":"log"') == 400
        assert '"restored"' in body
        assert "taken after event 107" in body
    found = numbers(OPEN)
    assert found[:107] == list(range(1, 108))
    assert found[107:] == list(range(found[107], found[107] + 401))
    assert before < found[107] < 2**53  # JavaScript's numbers are whole up to here
    assert numbers(ENDED) == [1, 2, 3]  # its history is the same in both worlds


@pytest.mark.usefixtures("_database")
def test_restored_twice_numbers_differ() -> None:
    """Each restore begins where no earlier one has been, however many there are."""
    for _ in range(2):
        with transaction() as session:
            settle(session)
    first, second = numbers(OPEN)[107:]
    assert first < second


@pytest.mark.usefixtures("_database")
def test_numbering_stays_guarded_after_a_restore() -> None:
    with transaction() as session:
        settle(session)
    with pytest.raises(Exception, match="have a gap"), transaction() as session:
        session.execute(text("UPDATE jobs SET last_seq = last_seq + 1"))


@pytest.mark.usefixtures("_database")
@pytest.mark.parametrize("size", [50, 107, 2000])
def test_what_leapt_is_archived_and_counted(
    s3: S3, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Ranges follow each other over the leap, wherever they end before it."""
    with transaction() as session:
        settle(session)
        append_events(session, OPEN, [LINE] * 20)
        fail(session, OPEN)
    events = len(numbers(OPEN))
    assert counted() == events + 3
    monkeypatch.setattr(archiving, "RANGE_EVENTS", size)
    archiving.archive_events(store_of(s3), 0.0, 60)
    assert (numbers(OPEN), numbers(ENDED)) == ([], [])
    assert counted() == events + 3


def counted() -> int:
    """Return the gauge of all events."""
    with transaction() as session:
        [value] = [row[2] for row in session.execute(_QUERY) if row[0] == "events"]
    return int(value)


def store_of(s3: S3) -> Store:
    names = ("endpoint", "access_key", "secret_key", "bucket")
    return Store(Settings.model_validate({f"s3_{name}": getattr(s3, name) for name in names}))
