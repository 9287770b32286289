"""A back-up's hold on the store: while it stands, nothing is deleted.

`polar backup` first takes the lock, then a snapshot of the database, then copies the objects. Who
deletes an object has committed before that nothing refers to it, and looks here afterwards: so it
either sees the hold, or the snapshot no longer refers to the object.
"""

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.db import transaction
from app.s3 import StoreUnavailable

# The same words as in polar.backup.database. A session holds the lock, so it never outlives one.
_FREE = text("SELECT pg_try_advisory_xact_lock_shared(hashtext('polar.backup'))")


def refuse_while_held() -> None:
    """Raise StoreUnavailable while a back-up is being taken, or when nobody can tell."""
    try:
        with transaction() as session:
            free = session.execute(_FREE).scalar()
    except SQLAlchemyError as error:
        raise StoreUnavailable(
            "nothing is deleted from the object store while the database does not answer"
        ) from error
    if not free:
        raise StoreUnavailable(
            "a back-up is being taken: nothing is deleted from the object store until it has ended;"
            " try again later"
        )
