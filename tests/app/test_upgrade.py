"""Two versions side by side: present code on the next release's schema, and what is refused.

There is no earlier release yet whose code could run here, so the next one is made up: a migration
that adds, and one after which this version may no longer start.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from app.migration import alembic_config
from app.schema import Schema, WrongSchema, check, newest_revision, write_oldest_code
from app.settings import get_settings
from migrations import OLDEST_CODE
from polar.sse import Decoder, Frame
from tests.app.resources import JOB
from tests.app.server import Api, environment, run_app, running
from tests.services import ROOT, S3, wait_until

STREAM = {"Accept": "text/event-stream"}
NEXT = """
from alembic import op
import sqlalchemy as sa
revision, down_revision, branch_labels, depends_on = "9999", "{head}", None, None

def upgrade():
    op.add_column("jobs", sa.Column("next_field", sa.Text()))
    count = sa.Column("next_count", sa.Integer(), server_default="0", nullable=False)
    op.add_column("attempts", count)
    op.create_table("next_things", sa.Column("id", sa.Text(), primary_key=True))
    op.create_index("ix_jobs_next", "jobs", ["next_field"])
"""


@pytest.fixture
def variables(database_url: str, valkey_url: str, s3: S3, tmp_path: Path) -> dict[str, str]:
    return environment(database_url, valkey_url, s3, tmp_path) | {"POLAR_FAKE_TARGET": "true"}


def frames(stream: httpx.Response) -> Iterator[Frame]:
    """The frames of one connection."""
    decoder = Decoder()
    for piece in stream.iter_text():
        yield from decoder.feed(piece)


def migrate_to_next(database_url: str, oldest_code: str, tmp_path: Path) -> None:
    """Do to the database what the next release's `migrate` does."""
    folder = tmp_path / "next" / "migrations"
    (folder / "versions").mkdir(parents=True)
    for path in (ROOT / "migrations").rglob("*.py"):
        target = folder / path.relative_to(ROOT / "migrations")
        target.write_bytes(path.read_bytes())
    new = NEXT.format(head=newest_revision())
    (folder / "versions" / "9999_next.py").write_text(new, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLAR_DATABASE_URL", database_url)
        get_settings.cache_clear()
        command.upgrade(alembic_config(folder), "head")
    get_settings.cache_clear()
    engine = create_engine(database_url)
    with Session(engine) as session, session.begin():
        write_oldest_code(session, oldest_code)
    engine.dispose()


def test_the_code_knows_its_own_schema(database_url: str) -> None:
    script = ScriptDirectory.from_config(alembic_config())
    assert script.get_heads() == [newest_revision()]
    assert script.get_revision(OLDEST_CODE) is not None
    engine = create_engine(database_url)
    with engine.connect() as connection:
        note = "SELECT obj_description('alembic_version'::regclass, 'pg_class')"
        assert connection.execute(text(note)).scalar() == f"oldest code: {OLDEST_CODE}"
    engine.dispose()


@pytest.fixture
def reconciler(variables: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """A reconciler of this version, with the fake target; yields its log."""
    log = tmp_path / "reconciler.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker", "reconciler"],
            cwd=ROOT,
            env=variables,
            stdout=output,
            stderr=output,
        )
    yield log
    process.terminate()
    assert process.wait(40) == 0, log.read_text()


@pytest.mark.sampled
def test_a_job_runs_on_the_next_releases_schema(
    database_url: str,
    variables: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    migrate_to_next(database_url, OLDEST_CODE, tmp_path)
    again = run_app("migrate", variables)
    assert (again.returncode, again.stderr.strip()) == (
        0,
        "the database has the newer schema 9999, on which this version works",
    )
    request.getfixturevalue("reconciler")
    key = run_app("first-key", variables).stdout.strip()
    with running(variables, key) as api:
        assert api.client.get("/readyz").json()["missing"] == []
        spec = {**JOB, "compute": {"target": "fake"}, "labels": {"fake/pace": "0.01"}}
        job_id = api.client.post("/jobs", json=spec).json()["id"]
        api.write("UPDATE jobs SET prepared_key = :key WHERE id = :id", key="a" * 64, id=job_id)
        wait_until(
            lambda: api.client.get(f"/jobs/{job_id}").json()["status"] == "succeeded", timeout=60
        )
        page = api.client.get(f"/jobs/{job_id}/events", params={"limit": 500}).json()
        assert [event["seq"] for event in page["data"]] == list(range(1, len(page["data"]) + 1))


@pytest.mark.parametrize("note", [None, "9999"])
def test_a_newer_schema_needs_a_note_that_it_still_serves_us(note: str | None) -> None:
    assert check(Schema("9999", newest_revision()))
    assert check(Schema("9999", "0001"))
    assert not check(Schema(newest_revision(), note))
    with pytest.raises(WrongSchema, match="too new"):
        check(Schema("9999", note))


@pytest.mark.sampled
def test_a_schema_that_is_too_new_is_refused_by_everything(
    database_url: str, variables: dict[str, str], tmp_path: Path
) -> None:
    migrate_to_next(database_url, "9999", tmp_path)
    said = f"the database has schema 9999, which is too new for this version's {newest_revision()}"
    modules = (["app", "migrate"], ["app", "serve"], ["worker", "reconciler"])
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda module: run_module(module, variables), modules):
            assert (done.returncode, said in done.stderr) == (1, True), done
    assert _revision(database_url) == "9999"  # nobody touched it


@pytest.mark.sampled
def test_a_schema_that_is_too_old_is_refused_until_it_is_migrated(
    database_url: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_DATABASE_URL", database_url)
    get_settings.cache_clear()
    command.downgrade(alembic_config(), "-1")
    get_settings.cache_clear()
    modules = (["app", "serve"], ["worker", "celery", "host"])
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda module: run_module(module, variables), modules):
            assert done.returncode == 1
            said = f"this version needs {newest_revision()}: run `python -m app migrate`"
            assert said in done.stderr
    assert run_app("migrate", variables).returncode == 0
    with running(variables) as api:
        assert httpx.get(f"{api.url}/readyz").json()["missing"] == []
        command.downgrade(alembic_config(), "-1")  # behind its back: it says so
        wait_until(lambda: httpx.get(f"{api.url}/readyz").json()["missing"] == ["database"])


@pytest.mark.sampled
def test_an_api_starts_while_the_database_is_away(
    variables: dict[str, str],
) -> None:
    away = {**variables, "POLAR_DATABASE_URL": "postgresql+psycopg://u:p@127.0.0.1:1/polar"}
    with running(away) as api:
        assert "database" in httpx.get(f"{api.url}/readyz").json()["missing"]


def run_module(module: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _revision(database_url: str) -> str:
    engine = create_engine(database_url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    return str(found)


# -- two API processes ------------------------------------------------------------------------


@pytest.fixture
def pair(variables: dict[str, str]) -> Iterator[tuple[Api, Api]]:
    """Two API processes on one database, as behind a load balancer."""
    key = run_app("first-key", variables).stdout.strip()
    with running(variables, key) as one, running(variables, key) as other:
        yield one, other


def test_two_api_processes_are_one_service(pair: tuple[Api, Api]) -> None:
    one, other = pair
    start = threading.Barrier(8)

    def submit(number: int) -> httpx.Response:
        start.wait(30)
        api = pair[number % 2]
        return api.client.post("/jobs", json=JOB, headers={"Idempotency-Key": "the-same"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert {answer.status_code for answer in answers} <= {200, 201, 409}, answers[0].text
    ids = {answer.json()["id"] for answer in answers if answer.status_code < 300}
    assert len(ids) == 1
    assert one.rows("SELECT count(*) FROM jobs") == [(1,)]

    job_id = ids.pop()
    with other.client.stream("GET", f"/jobs/{job_id}/events", headers=STREAM) as stream:
        assert one.client.post(f"/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        seen = list(frames(stream))
    numbers = [frame.seq for frame in seen if frame.seq is not None]
    assert numbers == list(range(1, len(numbers) + 1))
    assert seen[-1].type == "end"

    made = one.client.post("/api-keys", json={"name": "x", "role": "viewer"}).json()
    with other.with_key(made["key"]) as client:
        assert client.get("/jobs").status_code == 200
        assert one.client.delete(f"/api-keys/{made['id']}").status_code == 204
        wait_until(lambda: client.get("/jobs").status_code == 401, timeout=30)


def test_a_stream_goes_on_at_the_other_process(pair: tuple[Api, Api]) -> None:
    """A rolling restart: one process ends, its streams end without `end` and resume elsewhere."""
    one, other = pair
    job_id = one.client.post("/jobs", json=JOB).json()["id"]
    with one.client.stream("GET", f"/jobs/{job_id}/events", headers=STREAM) as stream:
        coming = frames(stream)
        assert next(coming).seq == 1
        one.process.terminate()
        rest = [frame.type for frame in coming]
    assert one.process.wait(30) in (0, -15)
    assert "end" not in rest
    assert other.client.post(f"/jobs/{job_id}/cancel").status_code == 202
    headers = {**STREAM, "Last-Event-ID": "1"}
    with other.client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as stream:
        seen = list(frames(stream))
    numbers = [frame.seq for frame in seen if frame.seq is not None]
    assert numbers == list(range(2, len(numbers) + 2))
    assert seen[-1].type == "end"
