"""Numbers that Prometheus reads: the API's own and what Postgres knows."""

import importlib.metadata
from collections.abc import Iterable
from typing import cast

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import text
from sqlalchemy.pool import QueuePool

from app.db import get_engine, transaction
from app.telemetry import REGISTRY

_QUERY = text(
    """
    SELECT 'jobs' AS what, status AS label, count(*) FROM jobs GROUP BY status
    UNION ALL SELECT 'hints', queue, count(*) FROM outbox GROUP BY queue
    UNION ALL SELECT 'preparations', status, count(*) FROM preparations
        WHERE status IN ('waiting', 'running') GROUP BY status
    UNION ALL SELECT 'unreleased', target, count(*) FROM attempts
        WHERE released_at IS NULL GROUP BY target
    UNION ALL SELECT 'workers', kind, count(*) FROM workers
        WHERE seen_at > now() - interval '1 minute' GROUP BY kind
    UNION ALL SELECT 'events', 'all', coalesce(sum(CASE
            WHEN last_seq < 1000000000 THEN last_seq  -- else a restore has left numbers out
            ELSE (SELECT count(*) FROM job_events WHERE job_id = jobs.id)
                + (SELECT coalesce(sum(n.value::bigint), 0) FROM event_ranges r,
                    jsonb_each_text(r.counts) AS n WHERE r.job_id = jobs.id)
        END), 0)::bigint FROM jobs
    UNION ALL SELECT 'removed', kind, sum((removed ->> 'count')::bigint)::bigint
        FROM housekeeping_runs, jsonb_each(report) AS each (kind, removed)
        WHERE NOT dry_run GROUP BY kind
    UNION ALL SELECT 'removed_bytes', kind, sum((removed ->> 'bytes')::bigint)::bigint
        FROM housekeeping_runs, jsonb_each(report) AS each (kind, removed)
        WHERE NOT dry_run GROUP BY kind
    UNION ALL SELECT 'housekeeping_age', 'any', extract(epoch FROM now() - max(finished_at))::bigint
        FROM housekeeping_runs WHERE NOT dry_run AND error IS NULL HAVING count(*) > 0
    UNION ALL SELECT 'checkpoint_age', 'oldest', max(extract(epoch FROM now() - greatest(
            a.started_at, (SELECT max(c.created_at) FROM checkpoints c WHERE c.attempt_id = a.id)
        )))::bigint
        FROM attempts a JOIN jobs j ON j.id = a.job_id
        WHERE j.status = 'running' AND a.finished_at IS NULL AND a.started_at IS NOT NULL
        HAVING count(*) > 0
    """
)
_FAMILIES = {
    "jobs": ("polar_jobs", "Jobs by status.", "status"),
    "hints": ("polar_outbox_hints", "Hints that have not left for the broker.", "queue"),
    "preparations": ("polar_preparations", "Preparations that wait or run.", "status"),
    "unreleased": ("polar_attempts_unreleased", "Attempts whose machine is not free.", "target"),
    "workers": ("polar_workers", "Processes of ours seen in the last minute.", "kind"),
    "removed": (
        "polar_housekeeping_removed",
        "What housekeeping has removed in 30 days.",
        "kind",
    ),
    "removed_bytes": (
        "polar_housekeeping_removed_bytes",
        "Bytes of the store that housekeeping has freed in 30 days.",
        "kind",
    ),
    "housekeeping_age": (
        "polar_housekeeping_age_seconds",
        "Since housekeeping last got through.",
        "run",
    ),
    "checkpoint_age": (
        "polar_checkpoint_age_seconds",
        "Longest that a running attempt has stored no checkpoint.",
        "attempt",
    ),
    "events": ("polar_events", "Events of all jobs that are kept.", "project"),
}


class _Database(Collector):
    def collect(self) -> Iterable[Metric]:
        """Ask Postgres once for all gauges."""
        families = {
            what: GaugeMetricFamily(name, text_, labels=[label])
            for what, (name, text_, label) in _FAMILIES.items()
        }
        with transaction() as session:
            for what, label, count in session.execute(_QUERY):
                families[what].add_metric([label], count)
        yield from families.values()


class _Process(Collector):
    def collect(self) -> Iterable[Metric]:
        """Say what this process is and how its database pool is used."""
        pool = cast("QueuePool", get_engine().pool)
        connections = GaugeMetricFamily(
            "polar_db_connections", "Connections of this process's pool.", labels=["state"]
        )
        connections.add_metric(["used"], pool.checkedout())
        connections.add_metric(["idle"], pool.checkedin())
        yield connections
        build = GaugeMetricFamily("polar_build", "Version of the service.", labels=["version"])
        build.add_metric([importlib.metadata.version("polar-trainer")], 1)
        yield build


# Registering asks them nothing yet. Once, here: the first two scrapes may come at the same time.
for _collector in (_Database(), _Process()):
    REGISTRY.register(_collector)


def exposition() -> bytes:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
