"""API keys in Postgres."""

import hashlib
import hmac
from collections.abc import Collection

from sqlalchemy import func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from app.models import ApiKey


def token_hash(token: str) -> str:
    """Return the sha256 that is stored instead of the key; keys are random, so no salt."""
    return hashlib.sha256(token.encode()).hexdigest()


def find_key(session: Session, prefix: str, digest: str) -> ApiKey | None:
    """Return the live key with this prefix and hash; hashes are compared in constant time."""
    row = session.scalar(select(ApiKey).where(ApiKey.prefix == prefix, ApiKey.revoked_at.is_(None)))
    return row if row is not None and hmac.compare_digest(row.hash, digest) else None


def mark_used(session: Session, key_id: str) -> None:
    """Note that the key was used, at most once a minute."""
    stale = or_(
        ApiKey.last_used_at.is_(None),
        ApiKey.last_used_at < func.now() - text("interval '1 minute'"),
    )
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, stale)
        .values(last_used_at=func.now())
        .execution_options(synchronize_session=False)
    )


def add_key(session: Session, values: dict[str, str]) -> ApiKey:
    """Insert a key and return it."""
    return session.scalars(insert(ApiKey).values(values).returning(ApiKey)).one()


def list_keys(session: Session, project_id: str) -> list[ApiKey]:
    """Return the project's keys that were not revoked, newest first."""
    query = select(ApiKey).where(ApiKey.project_id == project_id, ApiKey.revoked_at.is_(None))
    return list(session.scalars(query.order_by(ApiKey.id.desc())))


def live_keys(session: Session, ids: Collection[str]) -> set[str]:
    """Return those of these keys that were not revoked."""
    query = select(ApiKey.id).where(ApiKey.id.in_(ids), ApiKey.revoked_at.is_(None))
    return set(session.scalars(query))


def lock_admins(session: Session, project_id: str) -> list[str]:
    """Lock the project and return the ids of its live admin keys."""
    session.execute(
        text("SELECT FROM projects WHERE id = :id FOR UPDATE"), {"id": project_id}
    ).all()
    query = select(ApiKey.id).where(
        ApiKey.project_id == project_id, ApiKey.role == "admin", ApiKey.revoked_at.is_(None)
    )
    return list(session.scalars(query))


def revoke(session: Session, project_id: str, key_id: str) -> bool:
    """Revoke a live key; False when there is none."""
    done = session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, ApiKey.project_id == project_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=func.now())
        .returning(ApiKey.id)
    )
    return done.first() is not None
