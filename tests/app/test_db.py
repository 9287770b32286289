"""What the engine makes of connections that Postgres ends."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

import app.db
from app.settings import get_settings
from tests.app.server import Api
from tests.services import wait_until


def _alive(api: Api, pid: int) -> bool:
    return bool(api.rows("SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid))


def test_a_transaction_that_stood_still_for_too_long_is_an_outage(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres ends it by our own limit, half a lease and at least a second (SQLSTATE 25P03)."""
    monkeypatch.setenv("POLAR_DATABASE_URL", api.environment["POLAR_DATABASE_URL"])
    monkeypatch.setenv("POLAR_LEASE", "1")
    get_settings.cache_clear()
    engine = create_engine(api.environment["POLAR_DATABASE_URL"], **app.db._options(get_settings()))
    app.db._look_after(engine)
    pid = text("SELECT pg_backend_pid()")
    with app.db.transaction(engine) as session:
        ours = session.execute(pid).scalar()
        wait_until(lambda: not _alive(api, ours))
        with pytest.raises(OperationalError) as raised:
            session.execute(pid)
        session.rollback()
    assert getattr(raised.value.orig, "sqlstate", None) == "25P03"
    assert raised.value.connection_invalidated
    with app.db.transaction(engine) as session:  # and the pool has a new one
        assert session.execute(pid).scalar() != ours
    engine.dispose()
    get_settings.cache_clear()
