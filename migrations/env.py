"""Runs migrations under an advisory lock, so that two starters never migrate at once."""

from alembic import context
from sqlalchemy import create_engine, text

from app.models import Base
from app.settings import get_settings

_LOCK = 0x504F4C4152  # "POLAR"


def run() -> None:
    """Run the migrations that Alembic's command asked for."""
    url = context.get_x_argument(as_dictionary=True).get(
        "url", get_settings().database_url.get_secret_value()
    )
    engine = create_engine(url, connect_args={"connect_timeout": 10})
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        connection.commit()
        context.configure(connection=connection, target_metadata=Base.metadata)
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
    engine.dispose()


run()
