"""Rules of secrets: stored encrypted, never shown, handed to supervisors alone."""

from collections.abc import Iterable

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app.errors import NotFound
from app.models import Secret
from app.secrets.cipher import decrypt, encrypt, key_file, load_key
from app.secrets.schemas import SecretList, SecretOut
from app.settings import get_settings


def _context(project_id: str, name: str) -> str:
    return f"{project_id}/{name}"


def put_secret(session: Session, project_id: str, name: str, value: str) -> SecretOut:
    """Store a value under this name, in place of an earlier one."""
    key = load_key(key_file(get_settings()))
    values = {
        "project_id": project_id,
        "name": name,
        "ciphertext": encrypt(key, value, _context(project_id, name)),
    }
    statement = insert(Secret).values(values)
    changed = {"ciphertext": statement.excluded.ciphertext, "updated_at": func.now()}
    upsert = statement.on_conflict_do_update(
        index_elements=[Secret.project_id, Secret.name], set_=changed
    )
    row = session.execute(upsert.returning(Secret.name, Secret.created_at, Secret.updated_at)).one()
    return SecretOut(name=row[0], created_at=row[1], updated_at=row[2])


def list_secrets(session: Session, project_id: str) -> SecretList:
    """Return names and times; values never leave."""
    query = (
        select(Secret.name, Secret.created_at, Secret.updated_at)
        .where(Secret.project_id == project_id)
        .order_by(Secret.name)
    )
    rows = session.execute(query)
    return SecretList(items=[SecretOut(name=r[0], created_at=r[1], updated_at=r[2]) for r in rows])


def delete_secret(session: Session, project_id: str, name: str) -> None:
    """Delete a secret; raises NotFound."""
    statement = delete(Secret).where(Secret.project_id == project_id, Secret.name == name)
    if session.execute(statement.returning(Secret.name)).first() is None:
        raise NotFound(f"there is no secret {name}", "secret_not_found")


def reveal(session: Session, project_id: str, names: Iterable[str]) -> dict[str, str]:
    """Return the values of these secrets, for a supervisor's memory; raises NotFound."""
    wanted = set(names)
    if not wanted:
        return {}
    query = select(Secret.name, Secret.ciphertext).where(
        Secret.project_id == project_id, Secret.name.in_(wanted)
    )
    found = {row[0]: row[1] for row in session.execute(query)}
    if missing := sorted(wanted - set(found)):
        raise NotFound(f"there is no secret {missing[0]} any more", "secret_not_found")
    key = load_key(key_file(get_settings()))
    return {n: decrypt(key, text, _context(project_id, n)) for n, text in found.items()}
