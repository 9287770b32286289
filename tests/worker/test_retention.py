"""Retention in the store: what nothing refers to goes, what anything refers to stays."""

import concurrent.futures
import random
import threading
import time

import pytest
from sqlalchemy import text

from app.attempts.store import LeaseLost
from app.backups.hold import refuse_while_held
from app.db import get_engine, transaction
from app.housekeeping.report import Report
from app.housekeeping.service import keep_house
from app.ids import new_id
from app.preparations.service import announce, claim_preparation, finish_preparation
from app.settings import Settings
from app.storage import Store, StoreUnavailable
from tests.worker.world import PROJECT, add_job, one, rows, run_sql

KEY = "a" * 64
BODY = b"12345"


@pytest.fixture
def objects(store_settings: Settings) -> Store:
    store_settings.orphan_days = -0.01  # whatever is there counts as old enough
    return Store(store_settings)


def look(objects: Store, *, dry_run: bool = False) -> Report:
    done = keep_house(objects, dry_run=dry_run, scan=True)
    assert done is not None
    return done


def attempt_of(job: str, outcome: str = "failed") -> str:
    """Add an attempt that is over and released."""
    attempt = new_id("att")
    run_sql(
        "INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome, finished_at,"
        " released_at) SELECT :a, :p, :j, 1 + count(*), 'local', 'n', :o, now(), now()"
        " FROM attempts WHERE job_id = :j",
        a=attempt,
        p=PROJECT,
        j=job,
        o=outcome,
    )
    return attempt


def end(job: str, status: str = "cancelled", days: float = 2) -> None:
    for step in ("provisioning", "running", "finalizing") if status == "succeeded" else ():
        run_sql("UPDATE jobs SET status = :s WHERE id = :j", j=job, s=step)
    run_sql(
        "UPDATE jobs SET status = :s, reason = CASE :s WHEN 'failed' THEN 'killed' END,"
        " finished_at = now() - CAST(:d AS float) * interval '1 day' WHERE id = :j",
        j=job,
        s=status,
        d=days,
    )


def checkpoint(objects: Store, job: str, attempt: str, step: int, *, retired: bool = False) -> str:
    """Store a checkpoint with its row; returns its prefix."""
    prefix = f"{PROJECT}/jobs/{job}/{attempt}/checkpoints/step-{step:08d}/"
    for name in ("weights", "manifest.json"):
        objects.put_bytes(prefix + name, BODY)
    run_sql(
        "INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,"
        " manifest_sha256, size, deleted_at) VALUES (:id, :p, :j, :a, :s, :prefix, 'x', 10,"
        " CASE WHEN :r THEN now() END)",
        id=new_id("ckp"),
        p=PROJECT,
        j=job,
        a=attempt,
        s=step,
        prefix=prefix,
        r=retired,
    )
    return prefix


def version(objects: Store, job: str, attempt: str, name: str, *, days_gone: int = 0) -> str:
    """Publish a model; `days_gone`: it was deleted so long ago, its files were not."""
    prefix = f"{PROJECT}/jobs/{job}/{attempt}/model/"
    for file in ("weights", "manifest.json"):
        objects.put_bytes(prefix + file, BODY)
    objects.put_bytes(f"{PROJECT}/models/{name}/v1.json", b"{}")
    run_sql(
        "INSERT INTO model_versions (id, project_id, name, version, job_id, prefix,"
        " manifest_sha256, kind, base_model, size, pointer_written_at, deleted_at) VALUES (:id, :p,"
        " :n, 1, :j, :prefix, 'x', 'full', 'b', 10, now(),"
        " CASE WHEN :d > 0 THEN now() - CAST(:d AS int) * interval '1 day' END)",
        id=new_id("mdl"),
        p=PROJECT,
        n=name,
        j=job,
        prefix=prefix,
        d=days_gone,
    )
    return prefix


def artifact(objects: Store, job: str, attempt: str, path: str) -> str:
    key = f"{PROJECT}/jobs/{job}/{attempt}/{path}"
    objects.put_bytes(key, BODY)
    run_sql(
        "INSERT INTO artifacts (id, project_id, job_id, kind, path, key, size, sha256)"
        " VALUES (:id, :p, :j, 'report', :path, :key, 5, 'x')",
        id=new_id("art"),
        p=PROJECT,
        j=job,
        path=path,
        key=key,
    )
    return key


def dataset(objects: Store, *, row: bool, deleted: bool = False) -> str:
    made = new_id("ds")
    key = f"{PROJECT}/datasets/{made}/v1/rows.jsonl"
    objects.put_bytes(key, BODY)
    if row:
        run_sql(
            "INSERT INTO datasets (id, project_id, name, version, source, location, deleted_at)"
            " VALUES (:id, :p, :id, 1, 'upload', :k, CASE WHEN :d THEN now() END)",
            id=made,
            p=PROJECT,
            k=key,
            d=deleted,
        )
    return key


def keys(objects: Store) -> set[str]:
    return {item.key for item in objects.list_objects(f"{PROJECT}/")}


def test_b29_what_nothing_refers_to_goes_and_all_else_stays(objects: Store):
    job = add_job()
    failed, won = attempt_of(job), attempt_of(job, "succeeded")
    kept = {
        checkpoint(objects, job, failed, 4) + "weights",
        checkpoint(objects, job, won, 8) + "weights",
        version(objects, job, won, "shop") + "weights",
        artifact(objects, job, won, "report.json"),
        dataset(objects, row=True),
    }
    gone = {
        checkpoint(objects, job, failed, 2, retired=True) + "weights",  # the store was away then
        dataset(objects, row=False),  # killed between object and row
        dataset(objects, row=True, deleted=True),
    }
    loose = f"{PROJECT}/jobs/{job}/{failed}/model/weights"  # a model half published
    uncommitted = f"{PROJECT}/jobs/{job}/{failed}/checkpoints/step-00000006/weights"
    archived = f"{PROJECT}/jobs/{job}/events/1"
    for key in (loose, uncommitted, archived):
        objects.put_bytes(key, BODY)
    run_sql(
        "INSERT INTO event_ranges (job_id, first_seq, last_seq, project_id, key, size, sha256,"
        " counts, last_xid) VALUES (:j, 1, 1, :p, :k, 5, 'x', '{}', 1)",
        j=job,
        p=PROJECT,
        k=archived,
    )
    kept |= {archived}
    gone |= {loose, uncommitted}
    end(job, "succeeded")
    before = keys(objects)
    assert kept | gone <= before
    said = look(objects, dry_run=True)
    assert keys(objects) == before  # only said
    done = look(objects)
    assert keys(objects) & (kept | gone) == kept
    assert {kind: done.document()[kind] for kind in said.kinds} == said.document()
    assert done.counts()["orphans_datasets"] == 2
    assert done.counts()["orphans_jobs"] == 2
    assert done.counts()["checkpoints"] == 1
    assert look(objects).counts()["orphans_jobs"] == 0


def test_an_open_job_and_what_is_young_are_left_alone(objects: Store, store_settings: Settings):
    store_settings.orphan_days = 1.0
    young = dataset(objects, row=False)
    ended = add_job()
    key = f"{PROJECT}/jobs/{ended}/{attempt_of(ended)}/checkpoints/step-00000006/weights"
    objects.put_bytes(key, BODY)
    end(ended)
    assert look(objects).counts()["orphans_jobs"] == 0
    assert keys(objects) == {young, key}
    store_settings.orphan_days = -0.01
    running = add_job()
    at_work = f"{PROJECT}/jobs/{running}/{new_id('att')}/checkpoints/step-00000002/weights"
    objects.put_bytes(at_work, BODY)
    look(objects)
    assert keys(objects) == {at_work}


def test_a_deleted_job_leaves_its_model_and_nothing_else(objects: Store):
    job = add_job()
    attempt = attempt_of(job, "succeeded")
    model = version(objects, job, attempt, "kept")
    checkpoint(objects, job, attempt, 4)  # as if the deletion had broken off
    report = artifact(objects, job, attempt, "report.json")
    end(job, "succeeded")
    run_sql("DELETE FROM preparations")
    run_sql("DELETE FROM jobs WHERE id = :j", j=job)
    look(objects)
    pointer = f"{PROJECT}/models/kept/v1.json"
    assert keys(objects) == {f"{model}weights", f"{model}manifest.json", report, pointer}


def test_what_is_left_of_a_deleted_version_goes(objects: Store):
    job = add_job()
    version(objects, job, attempt_of(job, "succeeded"), "gone", days_gone=2)
    end(job, "succeeded", days=20)
    assert look(objects).counts()["orphans_pointers"] == 3
    assert keys(objects) == set()


def test_checkpoints_of_jobs_that_succeeded_long_ago_go_and_those_for_retries_stay(objects: Store):
    prefixes = {}
    for name, status, days in (
        ("long ago", "succeeded", 31),
        ("lately", "succeeded", 29),
        ("failed", "failed", 400),
        ("needed", "succeeded", 31),
    ):
        job = add_job()
        prefixes[name] = checkpoint(objects, job, attempt_of(job), 4)
        end(job, status, days)
    run_sql(
        "UPDATE jobs SET start_from = jsonb_build_object('prefix', CAST(:p AS text)) WHERE id = :j",
        p=prefixes["needed"],
        j=add_job(),
    )
    assert look(objects).counts()["checkpoints"] == 1
    left = {key.rpartition("/")[0] + "/" for key in keys(objects)}
    assert left == {prefixes[name] for name in ("lately", "failed", "needed")}


def _retired_long_ago(objects: Store) -> str:
    """Return the prefix of a checkpoint that is due to go, of a job that nobody looks at again."""
    job = add_job()
    prefix = checkpoint(objects, job, attempt_of(job), 4)
    end(job, "succeeded", 31)
    return prefix


def _gone_in_the_end(objects: Store, prefix: str) -> None:
    """It was retired and is still there: the next round deletes it, and the one after does not."""
    assert objects.head(f"{prefix}weights") == len(BODY)
    look_up = "SELECT deleted_at IS NOT NULL, purged_at IS NOT NULL FROM checkpoints"
    assert rows(look_up) == [(True, False)]
    assert look(objects).counts()["checkpoints"] == 1
    assert keys(objects) == set()
    assert rows(look_up) == [(True, True)]
    assert look(objects).counts()["checkpoints"] == 0


def test_a_retired_checkpoint_goes_when_the_store_is_back(objects: Store):
    prefix = _retired_long_ago(objects)
    away = Store(Settings(s3_endpoint="http://127.0.0.1:9", s3_access_key="a", s3_secret_key="b"))
    with pytest.raises(StoreUnavailable):
        keep_house(away)
    _gone_in_the_end(objects, prefix)


def test_a_retired_checkpoint_goes_when_the_back_up_has_ended(
    objects: Store, store_settings: Settings
):
    prefix = _retired_long_ago(objects)
    with get_engine().connect() as backup:
        backup.execute(text("SELECT pg_advisory_lock(hashtext('polar.backup'))"))
        backup.commit()
        with pytest.raises(StoreUnavailable, match="back-up"):
            keep_house(Store(store_settings, may_delete=refuse_while_held))
        backup.execute(text("SELECT pg_advisory_unlock(hashtext('polar.backup'))"))
        backup.commit()
    _gone_in_the_end(objects, prefix)


def test_prepared_data_that_no_job_names_go_by_age(objects: Store, store_settings: Settings):
    for name in ("manifest.json", "train.arrow"):
        objects.put_bytes(f"{PROJECT}/prepared/{KEY}/{name}", BODY)
    assert look(objects).counts()["prepared"] == 0
    store_settings.prepared_days = -0.01
    job = add_job()  # names them
    assert look(objects).counts()["prepared"] == 0
    run_sql("UPDATE jobs SET prepared_key = NULL")
    run_sql("UPDATE preparations SET status = 'running', key = :k WHERE job_id = :j", k=KEY, j=job)
    assert look(objects).counts()["prepared"] == 0  # about to use them
    run_sql("UPDATE preparations SET status = 'failed'")
    assert look(objects).kinds["prepared"].bytes == 2 * len(BODY)
    assert keys(objects) == set()


def _prepare(objects: Store, job: str) -> bool:
    """What a preparation does: announce, look, upload what is missing, finish."""
    with transaction() as session:
        token = claim_preparation(session, job, "w")
    assert token is not None
    with transaction() as session:
        announce(session, job, token, PROJECT, KEY)
    prefix = f"{PROJECT}/prepared/{KEY}/"
    made = objects.head(prefix + "manifest.json") is None
    if made:
        objects.put_bytes(prefix + "train.arrow", BODY)
        objects.put_bytes(prefix + "manifest.json", BODY)
    with transaction() as session:
        finish_preparation(session, job, token, KEY, {})
    return made


def test_b26_prepared_data_are_never_deleted_under_a_job_that_begins_to_use_them(
    objects: Store, store_settings: Settings
):
    """Both at once, with a small random head start: what a job names is there in the end."""
    store_settings.prepared_days = -0.01
    dice = random.Random(7)  # noqa: S311 - times
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for _ in range(12):
            former = add_job()  # it used them, and has ended
            end(former)
            for name in ("manifest.json", "train.arrow"):
                objects.put_bytes(f"{PROJECT}/prepared/{KEY}/{name}", BODY)
            job = add_job(prepared=False)
            gate = threading.Barrier(2)
            head_start = dice.uniform(-0.03, 0.03)

            def tidy(head_start: float = head_start, gate: threading.Barrier = gate) -> int:
                gate.wait()
                time.sleep(max(0.0, head_start))
                return look(objects).counts()["prepared"]

            tidied = pool.submit(tidy)
            gate.wait()
            time.sleep(max(0.0, -head_start))
            made = _prepare(objects, job)
            dropped = tidied.result()
            assert one("SELECT prepared_key FROM jobs WHERE id = :j", j=job) == KEY
            for name in ("manifest.json", "train.arrow"):
                assert objects.head(f"{PROJECT}/prepared/{KEY}/{name}") == len(BODY), (
                    made,
                    dropped,
                )
            assert made == bool(dropped)
            end(job)
            run_sql("UPDATE jobs SET prepared_key = NULL")


def test_an_announcement_is_the_lease_holders_alone(objects: Store):
    del objects
    job = add_job(prepared=False)
    with transaction() as session:
        assert claim_preparation(session, job, "w")
    with pytest.raises(LeaseLost), transaction() as session:
        announce(session, job, "another's", PROJECT, KEY)
    assert one("SELECT key FROM preparations") is None


def test_the_store_is_looked_through_once_a_day_and_reports_are_kept(objects: Store):
    for expected in (True, False):
        done = keep_house(objects)
        assert done is not None
        assert done.scanned is expected
    run_sql("UPDATE housekeeping_runs SET finished_at = now() - interval '31 days'")
    assert keep_house(objects, dry_run=True) is not None
    assert rows("SELECT dry_run, scanned, error FROM housekeeping_runs") == [(True, True, None)]


def test_an_outage_of_the_store_is_in_the_report(settings: Settings):
    del settings
    away = Store(Settings(s3_endpoint="http://127.0.0.1:9", s3_access_key="a", s3_secret_key="b"))
    with pytest.raises(StoreUnavailable):
        keep_house(away)
    [(error,)] = rows("SELECT error FROM housekeeping_runs")
    assert "does not answer" in error
