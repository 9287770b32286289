"""Rows as the service writes them, for tests that need jobs, hosts and attempts."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from app.db import transaction
from app.ids import new_id

PROJECT = "prj_default"
SPEC: dict[str, Any] = {
    "task": {"type": "sft"},
    "model": {"source": "folder", "name_or_path": "/models/tiny"},
    "data": {"train": [{"source": "dataset", "path": "dst_1"}]},
    "tracking": {"mlflow": {"experiment": "polar", "run_name": None, "tags": {}}},
    "publish": {"registry": True},
}


def add_job(
    *,
    priority: int = 0,
    gpus: dict[str, Any] | None = None,
    prepared: bool = True,
    target: str = "local",
    max_attempts: int = 3,
    labels: dict[str, str] | None = None,
    project: str = PROJECT,
    **spec: Any,
) -> str:
    """Insert a queued job with its preparation; returns its id."""
    job_id = new_id("job")
    resolved = {**SPEC, **spec}
    document = {**resolved, "compute": {"target": target, "gpus": gpus}}
    with transaction() as session:
        session.execute(
            text(
                "INSERT INTO jobs (id, project_id, name, priority, task_type, backend, target,"
                " spec, resolved, max_attempts, prepared_key, labels) VALUES (:id, :project,"
                " :name, :priority, 'sft', 'hf', :target, CAST(:spec AS jsonb),"
                " CAST(:resolved AS jsonb), :max_attempts, :key, CAST(:labels AS jsonb))"
            ),
            {
                "id": job_id,
                "project": project,
                "name": "tiny",
                "priority": priority,
                "target": target,
                "spec": json.dumps(document),
                "resolved": json.dumps(resolved),
                "labels": json.dumps(labels or {}),
                "max_attempts": max_attempts,
                "key": "a" * 64 if prepared else None,
            },
        )
        session.execute(
            text(
                "INSERT INTO preparations (job_id, project_id, status) VALUES (:id, :project, :s)"
            ),
            {"id": job_id, "project": project, "s": "done" if prepared else "waiting"},
        )
    return job_id


def add_host(worker_id: str, devices: Sequence[tuple[str, str, float]] = (), slots: int = 0) -> str:
    """Insert an online host with (kind, name, memory) devices, or CPU slots; returns its id."""
    offered = list(devices) or [("cpu", "CPU", 8.0)] * slots
    with transaction() as session:
        session.execute(
            text(
                "INSERT INTO workers (id, project_id, kind, hostname, pid)"
                " VALUES (:id, :project, 'host', :id, 1)"
            ),
            {"id": worker_id, "project": PROJECT},
        )
        for index, (kind, name, memory) in enumerate(offered):
            session.execute(
                text(
                    "INSERT INTO devices (worker_id, index, project_id, kind, name, memory_gb)"
                    " VALUES (:id, :index, :project, :kind, :name, :memory)"
                ),
                {
                    "id": worker_id,
                    "index": index,
                    "project": PROJECT,
                    "kind": kind,
                    "name": name,
                    "memory": memory,
                },
            )
    return worker_id


def run_sql(statement: str, **values: Any) -> None:
    """Execute one statement in a transaction of its own."""
    with transaction() as session:
        session.execute(text(statement), values)


def one(statement: str, **values: Any) -> Any:
    """Return the only value of a query's first row, None without a row."""
    with transaction() as session:
        return session.execute(text(statement), values).scalar()


def rows(statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Return a query's rows."""
    with transaction() as session:
        return [tuple(row) for row in session.execute(text(statement), values)]
