"""Fills a database with ended jobs and their events, as quickly as Postgres takes them."""

import time
from typing import Any

import psycopg

from bench.streams_rig import Rig

# Ids like ours: 26 characters of Crockford's alphabet, growing with the number.
_ID = "'{prefix}_00' || upper(lpad(to_hex({number}), 24, '0'))"
_JOBS = """
    INSERT INTO jobs (id, project_id, name, labels, status, reason, task_type, backend, target,
        spec, resolved, max_attempts, last_seq, created_at, updated_at, started_at, finished_at)
    SELECT {job}, 'prj_default', 'bench ' || i, jsonb_build_object('team', 't' || i %% 10),
        'failed', 'killed', 'sft', 'hf', 'local', %(spec)s, %(spec)s, 1, %(events)s,
        now() - interval '1 day', now(), now(), now()
    FROM generate_series(%(first)s::bigint, %(last)s) AS i
"""
_ATTEMPTS = """
    INSERT INTO attempts (id, project_id, job_id, number, target, nonce, last_n, outcome, reason,
        claimed_at, started_at, finished_at, released_at)
    SELECT {attempt}, 'prj_default', {job}, 1, 'local', 'n', %(events)s, 'failed', 'killed',
        now(), now(), now(), now()
    FROM generate_series(%(first)s::bigint, %(last)s) AS i
"""
_EVENTS = """
    INSERT INTO job_events (job_id, seq, project_id, attempt_id, n, type, data)
    SELECT {job}, s, 'prj_default', {attempt}, s,
        CASE s %% 5 WHEN 0 THEN 'log' ELSE 'metrics' END,
        CASE s %% 5 WHEN 0 THEN jsonb_build_object('level', 'info', 'message', 'step ' || s)
        ELSE jsonb_build_object('step', s, 'loss', 1.5 + 1.0 / s, 'epoch', s / 1000.0) END
    FROM generate_series(%(first)s::bigint, %(last)s) AS i,
        generate_series(1, %(events)s::bigint) AS s
"""
_PORTION = 1_000_000


def fill(rig: Rig, first: int, jobs: int, events: int) -> list[str]:
    """Write `jobs` ended jobs of `events` events each; returns their ids.

    The guards are off meanwhile: what is written keeps to them. Secondary indexes are made anew
    afterwards, which is quicker for millions of rows.
    """
    names = {
        "job": _ID.format(prefix="job", number="i"),
        "attempt": _ID.format(prefix="att", number="i"),
    }
    spec = '{"task": {"type": "sft"}, "model": {"name_or_path": "m"}, "data": {"train": []}}'
    step = max(1, _PORTION // events)
    began = time.monotonic()
    with rig.connect() as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET synchronous_commit = off")
        indexes = _drop_indexes(connection)
        for low in range(first, first + jobs, step):
            values = {
                "first": low,
                "last": min(low + step, first + jobs) - 1,
                "events": events,
                "spec": spec,
            }
            with connection.transaction():
                for statement in (_JOBS, _ATTEMPTS, _EVENTS):
                    connection.execute(statement.format(**names), values)
        for definition in indexes:
            connection.execute(definition)
        connection.execute("RESET session_replication_role")
        query = f"SELECT {names['job']} FROM generate_series(%s::bigint, %s) AS i"  # noqa: S608
        found = connection.execute(query, [first, first + jobs - 1]).fetchall()
    print(f"{jobs} jobs, {jobs * events} events in {time.monotonic() - began:.0f} s", flush=True)
    return [row[0] for row in found]


def _drop_indexes(connection: psycopg.Connection[Any]) -> list[str]:
    query = """SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'job_events'
        AND indexname <> 'job_events_pkey'"""
    found = connection.execute(query).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}")
    return [definition for _, definition in found]


def settle(rig: Rig) -> None:
    """Do what autovacuum does in time: statistics and the visibility map."""
    with rig.connect() as connection:
        for table in ("jobs", "attempts", "job_events"):
            connection.execute(f"VACUUM (ANALYZE) {table}")
        connection.execute("CHECKPOINT")
