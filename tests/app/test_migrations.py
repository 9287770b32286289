"""The schema: up, down and up again; the guards hold whoever writes."""

import importlib.util
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy.exc
from alembic import command
from sqlalchemy import Connection, create_engine, inspect, text

from app.jobs.lifecycle import LEGAL, TERMINAL, Status, transition
from app.migration import alembic_config
from app.settings import get_settings
from polar.stack.services import Postgres
from tests.services import ROOT

JOB = """
INSERT INTO jobs (id, project_id, name, task_type, backend, target, spec, resolved, max_attempts)
VALUES (:id, 'prj_default', 'n', 'sft', 'hf', 'local', '{}', '{}', 1)
"""


def test_upgrade_check_downgrade_upgrade(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"migration_{secrets.token_hex(4)}"
    postgres.ensure_database(name)
    monkeypatch.setenv("POLAR_DATABASE_URL", postgres.url(name))
    get_settings.cache_clear()
    config = alembic_config()
    try:
        command.upgrade(config, "head")
        command.check(config)  # the models and the migrations describe the same tables
        command.downgrade(config, "base")
        engine = create_engine(postgres.url(name))
        left = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'polar%'"
        with engine.connect() as connection:
            assert inspect(connection).get_table_names() == ["alembic_version"]
            assert connection.execute(text(left)).scalar() == 0
        command.upgrade(config, "head")
        command.check(config)
        engine.dispose()
    finally:
        get_settings.cache_clear()


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    engine = create_engine(database_url)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def _refused(connection: Connection, statement: str, match: str, **values: object) -> None:
    connection.commit()
    now = text("SET CONSTRAINTS ALL IMMEDIATE")  # else deferred guards speak at the commit
    connection.execute(now)
    with pytest.raises(sqlalchemy.exc.IntegrityError, match=match):
        connection.execute(text(statement), values)
    connection.rollback()


def _to(connection: Connection, status: Status, job_id: str) -> None:
    """Bring a fresh job to a status by legal steps."""
    connection.execute(text(JOB), {"id": job_id})
    paths = {
        Status.PROVISIONING: ["provisioning"],
        Status.RUNNING: ["provisioning", "running"],
        Status.FINALIZING: ["provisioning", "running", "finalizing"],
        Status.SUCCEEDED: ["provisioning", "running", "finalizing", "succeeded"],
        Status.FAILED: ["failed"],
        Status.CANCELLED: ["cancelled"],
        Status.PAUSED: ["paused"],
        Status.QUEUED: [],
    }
    for step in paths[status]:
        connection.execute(text(_MOVE), {"id": job_id, "to": step})
    connection.commit()


_MOVE = """
UPDATE jobs SET status = :to, reason = CASE WHEN :to = 'failed' THEN 'killed' END,
    finished_at = CASE WHEN :to IN ('succeeded', 'failed', 'cancelled') THEN now() END
WHERE id = :id
"""


def test_the_trigger_allows_exactly_what_the_table_allows(connection: Connection) -> None:
    """Every pair of statuses is tried in Postgres and compared with `lifecycle.LEGAL`."""
    allowed: dict[Status, set[Status]] = {status: set() for status in Status}
    for source in Status:
        for target in set(Status) - {source}:
            job_id = f"{source}-{target}"
            _to(connection, source, job_id)
            try:
                connection.execute(text(_MOVE), {"id": job_id, "to": target.value})
                connection.commit()
                allowed[source].add(target)
            except sqlalchemy.exc.IntegrityError:
                connection.rollback()
    assert allowed == {status: set(targets) for status, targets in LEGAL.items()}


def test_the_migration_lists_the_same_table() -> None:
    path = ROOT / "migrations" / "versions" / "0002_guards.py"
    spec = importlib.util.spec_from_file_location("guards", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.LEGAL) == {f"{a}>{b}" for a, targets in LEGAL.items() for b in targets}


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_an_outcome_is_final(connection: Connection, status: Status) -> None:
    _to(connection, status, "j")
    change = (
        "UPDATE jobs SET message = :m, reason = :r, finished_at = finished_at + :t WHERE id = 'j'"
    )
    hour = timedelta(hours=1)
    nothing = {"m": None, "r": "killed" if status is Status.FAILED else None, "t": timedelta()}
    for different in ({"m": "x"}, {"r": "stalled"}, {"t": hour}):
        _refused(connection, change, "final", **{**nothing, **different})
    connection.execute(text("UPDATE jobs SET labels = '{\"a\": \"b\"}' WHERE id = 'j'"))


def test_a_job_begins_queued_and_with_its_first_event_at_most(connection: Connection) -> None:
    with_status = JOB.replace("max_attempts)", "max_attempts, status)").replace(
        "1)", "1, 'paused')"
    )
    _refused(connection, with_status, "begins queued", id="a")
    with_two = JOB.replace("max_attempts)", "max_attempts, last_seq)").replace("1)", "1, 2)")
    _refused(connection, with_two, "begins queued", id="a")
    without_its_event = with_two.replace("1, 2)", "1, 1)")
    _refused(connection, without_its_event, "have a gap", id="a")


def test_the_sequence_has_no_gap_and_events_never_change(connection: Connection) -> None:
    connection.execute(text(JOB), {"id": "j"})
    event = """INSERT INTO job_events (job_id, seq, project_id, type, data)
        VALUES ('j', :seq, :project, 'log', '{}')"""
    _refused(connection, "UPDATE jobs SET last_seq = 2 WHERE id = 'j'", "have a gap")
    _refused(connection, event, "outside of its job", seq=1, project="prj_default")
    connection.execute(text("UPDATE jobs SET last_seq = 1 WHERE id = 'j'"))
    connection.execute(text(event), {"seq": 1, "project": "prj_default"})
    connection.commit()
    _refused(connection, event, "unique|duplicate", seq=1, project="prj_default")
    _refused(connection, "UPDATE job_events SET data = '[]'", "never changed")
    _refused(connection, "UPDATE jobs SET last_seq = 0 WHERE id = 'j'", "never go back")


def test_an_attempts_outcome_is_final_and_one_lives_at_a_time(connection: Connection) -> None:
    connection.execute(text(JOB), {"id": "j"})
    attempt = """INSERT INTO attempts (id, project_id, job_id, number, target, nonce)
        VALUES (:id, 'prj_default', 'j', :number, 'local', 'n')"""
    connection.execute(text(attempt), {"id": "a", "number": 1})
    _refused(connection, attempt, "uq_attempts_live", id="b", number=2)
    over = "UPDATE attempts SET outcome = 'lost', finished_at = now() WHERE id = 'a'"
    connection.execute(text(over))
    _refused(connection, "UPDATE attempts SET outcome = 'failed' WHERE id = 'a'", "final")
    connection.execute(text("UPDATE attempts SET released_at = now() WHERE id = 'a'"))
    connection.execute(text(attempt), {"id": "b", "number": 2})


def test_one_of_two_writers_wins(connection: Connection, database_url: str) -> None:
    """`transition` from the same status twice: the second finds the job moved."""
    from sqlalchemy.orm import Session

    _to(connection, Status.QUEUED, "j")
    engine = create_engine(database_url)
    with Session(engine) as session, session.begin():
        assert transition(session, "j", Status.PROVISIONING)
    with Session(engine) as session, session.begin():
        assert not transition(session, "j", Status.PROVISIONING)
        assert not transition(session, "j", Status.CANCELLED, sources=[Status.QUEUED])
    with engine.connect() as other:
        events = other.execute(text("SELECT seq, data ->> 'status' FROM job_events")).all()
    engine.dispose()
    assert [tuple(event) for event in events] == [(1, "provisioning")]


def test_every_table_has_its_project_but_those_that_span_all(connection: Connection) -> None:
    spanning = {"alembic_version", "projects", "housekeeping_runs"}
    tables = set(inspect(connection).get_table_names()) - spanning
    without = {
        table
        for table in tables
        if "project_id" not in {c["name"] for c in inspect(connection).get_columns(table)}
    }
    assert without == set()


def test_migrations_are_numbered_one_after_another() -> None:
    names = sorted(Path(ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert [int(re.match(r"\d+", n.name).group()) for n in names] == list(range(1, len(names) + 1))
