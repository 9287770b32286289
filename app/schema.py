"""Does this code fit the schema of its database? Both change, and never at the same moment.

An upgrade migrates first and replaces the processes afterwards, one after the other: until then
earlier code works on the newer schema. So a revision only adds (expand); what earlier code needs is
taken away by a later release (contract), whose revision raises `OLDEST_CODE` in `migrations`.
`migrate` writes that beside the revision, and code that is older refuses to start.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.db import transaction

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
_REVISION = re.compile(r"(\d{4})_\w+\.py")
_NOTE = "oldest code: "
_ASK = text(
    """
    SELECT to_regclass('alembic_version') IS NOT NULL AS laid,
        obj_description(to_regclass('alembic_version'), 'pg_class') AS note
    """
)


class WrongSchema(Exception):
    """This code cannot work on the database as it is; the message says what to do."""


@lru_cache
def newest_revision() -> str:
    """Return the schema that this code was written for: its newest migration."""
    names = (_REVISION.fullmatch(path.name) for path in (MIGRATIONS / "versions").iterdir())
    return max(found[1] for found in names if found)


@dataclass(frozen=True)
class Schema:
    """What the database has: its revision, and the oldest code that may work on it."""

    revision: str | None
    oldest_code: str | None


def read_schema(session: Session) -> Schema:
    """Return the schema's version; no revision where nothing was ever migrated."""
    row = session.execute(_ASK).one()
    if not row.laid:
        return Schema(None, None)
    revision = session.execute(text("SELECT version_num FROM alembic_version")).scalar()
    note = str(row.note or "")
    return Schema(revision, note.removeprefix(_NOTE) if note.startswith(_NOTE) else None)


def write_oldest_code(session: Session, revision: str) -> None:
    """Note beside the revision which code may work on it."""
    if not re.fullmatch(r"\d{4}", revision):
        raise ValueError(f"{revision!r} is no revision")
    session.execute(text(f"COMMENT ON TABLE alembic_version IS '{_NOTE}{revision}'"))


def check(schema: Schema) -> bool:
    """Say whether the database is newer than this code, which may work on it.

    Raises WrongSchema when it may not, or when the database is older.
    """
    ours = newest_revision()
    if schema.revision is None:
        raise WrongSchema("the database has no tables: run `python -m app migrate`")
    if schema.revision < ours:
        raise WrongSchema(
            f"the database has schema {schema.revision}, this version needs {ours}: "
            "run `python -m app migrate` of this version first"
        )
    if schema.revision > ours and (schema.oldest_code is None or schema.oldest_code > ours):
        raise WrongSchema(
            f"the database has schema {schema.revision}, which is too new for this version's "
            f"{ours}: start the version that migrated it, or a newer one"
        )
    return schema.revision > ours


def refuse_wrong_schema() -> None:
    """End this process when its code does not fit the database.

    A database that does not answer is no reason: whoever needs it waits for it.
    """
    try:
        with transaction() as session:
            check(read_schema(session))
    except DBAPIError:
        return
    except WrongSchema as wrong:
        raise SystemExit(str(wrong)) from None
