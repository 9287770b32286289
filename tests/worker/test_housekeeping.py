"""Housekeeping: what is old and unused goes, what is used stays, one at a time."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

import worker.tidy
from app.db import get_engine, transaction
from app.housekeeping.service import keep_house
from app.settings import Settings
from app.storage import Store
from tests.worker.world import PROJECT, add_host, add_job, one, rows, run_sql
from worker import holding
from worker.holding import entries, hold
from worker.placement import place
from worker.tidy import DAY, _size, tidy, tidy_cache

KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def objects(store_settings: Settings) -> Store:
    return Store(store_settings)


def counts(objects: Store) -> dict[str, int]:
    """Keep house; returns how much of what has gone."""
    done = keep_house(objects)
    assert done is not None
    return done.counts()


def end(job: str, days: int) -> None:
    """End the job so long ago."""
    run_sql(
        "UPDATE jobs SET status = 'cancelled', finished_at = now() - CAST(:d AS int) * '1 day'::"
        "interval WHERE id = :id",
        id=job,
        d=days,
    )


def test_answers_go_after_their_hours(objects: Store):
    for key, hours in (("old", 25), ("young", 23)):
        run_sql(
            "INSERT INTO idempotency_keys (project_id, key, body_hash, created_at)"
            " VALUES (:p, :k, 'x', now() - CAST(:h AS int) * interval '1 hour')",
            p=PROJECT,
            k=key,
            h=hours,
        )
    assert counts(objects)["idempotency_keys"] == 1
    assert rows("SELECT key FROM idempotency_keys") == [("young",)]


def test_rows_of_dead_processes_go_but_not_hosts_that_hold_a_device(objects: Store):
    add_host("holds", slots=1)
    add_job()
    with transaction() as session:
        place(session, "r")
    add_host("gone", slots=1)
    add_host("lately", slots=1)
    run_sql("UPDATE workers SET seen_at = now() - interval '31 days' WHERE id <> 'lately'")
    run_sql("UPDATE workers SET seen_at = now() - interval '29 days' WHERE id = 'lately'")
    for kind, minutes in (("control", 61), ("prepare", 59)):
        run_sql(
            "INSERT INTO workers (id, project_id, kind, hostname, pid, seen_at)"
            " VALUES (:k, :p, :k, 'h', 1, now() - CAST(:m AS int) * interval '1 minute')",
            k=kind,
            p=PROJECT,
            m=minutes,
        )
    assert counts(objects)["workers"] == 2
    assert [row[0] for row in rows("SELECT id FROM workers ORDER BY id")] == [
        "holds",
        "lately",
        "prepare",
    ]


def test_a_mirror_that_mlflow_refuses_or_has_lost_comes_to_an_end(
    objects: Store, store_settings: Settings
):
    jobs = {}
    for name, days, failures in (
        ("refused", 31, 9),
        ("young", 29, 9),
        ("works", 31, 0),
    ):
        jobs[name] = add_job()
        end(jobs[name], days)
        run_sql(
            "INSERT INTO mlflow_runs (job_id, project_id, failures, error)"
            " VALUES (:j, :p, :f, CASE WHEN :f > 0 THEN 'no such experiment' END)",
            j=jobs[name],
            p=PROJECT,
            f=failures,
        )
    closed = "SELECT job_id FROM mlflow_runs WHERE closed_status = 'GIVEN_UP' ORDER BY job_id"
    store_settings.mlflow_url = "http://127.0.0.1:9"
    assert counts(objects)["mlflow_runs"] == 1
    assert rows(closed) == [(jobs["refused"],)]
    store_settings.mlflow_url = None
    assert counts(objects)["mlflow_runs"] == 1
    assert rows(closed) == sorted([(jobs["refused"],), (jobs["works"],)])
    errors = "SELECT error FROM mlflow_runs WHERE job_id = :j"
    assert one(errors, j=jobs["refused"]) == "no such experiment"
    assert one(errors, j=jobs["works"]) == "no MLflow server is configured any more"


def test_prepared_data_go_when_every_job_ended_long_ago(objects: Store):
    old, also, young, open_job = (add_job() for _ in range(4))
    run_sql("UPDATE jobs SET prepared_key = :k WHERE id = :id", k=OTHER, id=young)
    run_sql("UPDATE jobs SET prepared_key = :k WHERE id = :id", k="c" * 64, id=open_job)
    end(old, 31)
    end(also, 40)
    end(young, 29)
    for key in (KEY, OTHER, "c" * 64):
        for name in ("manifest.json", "train.arrow"):
            objects.put_bytes(f"{PROJECT}/prepared/{key}/{name}", b"x")
    assert counts(objects)["prepared"] == 1
    left = {item.key.split("/")[2] for item in objects.list_objects(f"{PROJECT}/prepared/")}
    assert left == {OTHER, "c" * 64}
    assert one("SELECT count(*) FROM jobs WHERE prepared_key IS NULL") == 2
    assert counts(objects)["prepared"] == 0


def test_uploads_that_nobody_finishes_are_aborted(objects: Store):
    objects._call("create_multipart_upload", f"{PROJECT}/datasets/x")
    assert counts(objects)["uploads"] == 0  # it is a moment old
    assert objects.abort_uploads(timedelta(days=-1)) == 1
    assert not objects._call("list_multipart_uploads", "").get("Uploads")


def test_b35_the_stores_own_clock_says_how_old_its_objects_are(objects: Store):
    objects.put_bytes(f"{PROJECT}/x", b"x")
    [item] = objects.list_objects(f"{PROJECT}/x")
    assert item.modified is not None
    assert abs(objects.now() - item.modified) < timedelta(minutes=1)


def test_only_one_works_at_a_time(objects: Store):
    with get_engine().connect() as other:
        other.execute(text("SELECT pg_advisory_lock(hashtext('polar.housekeeping'))"))
        assert keep_house(objects) is None
        other.execute(text("SELECT pg_advisory_unlock(hashtext('polar.housekeeping'))"))
    assert keep_house(objects) is not None


def test_a_host_forgets_folders_of_ended_jobs_and_keeps_those_in_use(
    settings: Settings, tmp_path: Path
):
    del settings
    add_host("h1", slots=2)
    ended, running = add_job(), add_job()
    run_sql("UPDATE jobs SET prepared_key = :k WHERE id = :id", k=OTHER, id=ended)
    with transaction() as session:
        assert place(session, "r") == 2
    held = one("SELECT id FROM attempts WHERE job_id = :id", id=running)
    over = one("SELECT id FROM attempts WHERE job_id = :id", id=ended)
    run_sql("UPDATE attempts SET finished_at = now(), outcome = 'failed', released_at = now()")
    run_sql("UPDATE attempts SET released_at = NULL WHERE id = :id", id=held)
    end(ended, 0)
    now = time.time()
    for name, days in {
        f"attempts/{held}": 30,
        f"attempts/{over}": 4,
        "attempts/att_unknown": 2,
        f"prepared/{KEY}": 30,
        f"prepared/{OTHER}": 8,
        f"preparations/{running}": 30,
        f"preparations/{ended}": 4,
        f"logs/supervisors/{held}.log": 30,
        f"logs/supervisors/{over}.log": 15,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch() if path.suffix else path.mkdir()
        os.utime(path, (now - days * DAY,) * 2)
    assert tidy(tmp_path, now) == 4
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if "_" in p.name}
    assert left == {
        f"attempts/{held}",
        "attempts/att_unknown",
        f"preparations/{running}",
        f"logs/supervisors/{held}.log",
    }
    assert [p.name for p in (tmp_path / "prepared").iterdir()] == [KEY]


def test_what_a_process_of_the_host_holds_stays(settings: Settings, tmp_path: Path):
    """A supervisor holds what it uses until it ends, whatever Postgres knows of it."""
    del settings
    folder = tmp_path / "prepared" / KEY
    program = (
        "import sys, pathlib; from worker.holding import hold;"
        " hold(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    folder.mkdir()
    for path in (folder, tmp_path / "prepared" / f".{KEY}.use"):
        os.utime(path, (0, 0))
    assert tidy(tmp_path, time.time()) == 0
    holder.kill()  # as hard as it can end
    holder.wait()
    assert tidy(tmp_path, time.time()) == 1
    assert list((tmp_path / "prepared").iterdir()) == []


def test_a_cache_keeps_what_was_used_last_within_its_size(tmp_path: Path):
    now = time.time()
    for age, name in enumerate(("data/a", "models/b", "s3/c", "data/d")):
        folder = hold(tmp_path / name)
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "f").write_bytes(bytes(1000))
        os.utime(folder.with_name(f".{folder.name}.use"), (now - age * DAY,) * 2)
    draft = tmp_path / "data" / ".d.1234"
    draft.mkdir()
    os.utime(draft, (now - 2 * DAY,) * 2)
    one_entry = _size(tmp_path / "data" / "a")
    assert tidy_cache(tmp_path, 10 * one_entry, now) == 0
    assert not draft.exists()
    assert tidy_cache(tmp_path, 2 * one_entry, now) == 0  # all are held: by this process
    release_all()
    assert tidy_cache(tmp_path, 2 * one_entry, now) == 2
    left = sorted(p.name for kind in tmp_path.iterdir() for p in entries(kind))
    assert left == ["a", "b"]


def release_all() -> None:
    """Let go of what this process holds, as its end would."""
    while holding._held:
        os.close(holding._held.popitem()[1])


def test_tidying_holds_no_transaction_while_it_removes(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The database ends those that stand still for half a lease, and gigabytes take longer."""
    del settings
    old = tmp_path / "attempts" / "att_old"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    seen: list[int] = []

    def remove(path: Path) -> bool:
        seen.append(one(_OPEN_TRANSACTIONS))
        path.rmdir()
        return True

    monkeypatch.setattr(worker.tidy, "_remove", remove)
    assert tidy(tmp_path, time.time()) == 1
    assert seen == [0]


_OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()
"""
