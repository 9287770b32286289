"""Alembic migrations: the tables of `app.models` and the guards that live in Postgres."""
