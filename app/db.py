"""Engine and transactions. One request, handler or step = one transaction."""

import contextlib
from collections.abc import Iterator
from functools import lru_cache

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from app.queue import nudge
from app.settings import get_settings


@lru_cache
def get_engine() -> Engine:
    """The process's engine; the pool holds one connection per request thread at most."""
    settings = get_settings()
    return create_engine(
        settings.database_url.get_secret_value(),
        pool_size=settings.threads,
        max_overflow=4,
        pool_pre_ping=True,
        pool_timeout=10,
        hide_parameters=True,  # errors are logged; specs and hashes are not for logs
        connect_args={"connect_timeout": 10, "application_name": "polar"},
    )


@contextlib.contextmanager
def transaction(engine: Engine | None = None) -> Iterator[Session]:
    """A session that commits at the end and rolls back on an error.

    Jobs named by `touch` are nudged to the stream readers after the commit, never before.
    """
    with Session(engine or get_engine(), expire_on_commit=False) as session, session.begin():
        yield session


def touch(session: Session, job_id: str) -> None:
    """Remember that the job's events changed: its readers are nudged after the commit."""
    session.info.setdefault("touched", set()).add(job_id)


@event.listens_for(Session, "after_commit")
def _nudge_readers(session: Session) -> None:
    for job_id in session.info.pop("touched", ()):
        nudge(job_id)


@event.listens_for(Session, "after_rollback")
def _forget(session: Session) -> None:
    session.info.pop("touched", None)
