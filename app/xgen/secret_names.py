"""Names for secrets that a form brings: the same value has the same name.

So a token that comes with every start is kept once, and a job keeps the one that it began with.
"""

import hashlib
import hmac

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload
from app.secrets.cipher import key_file, load_key
from app.secrets.schemas import SecretValue
from app.secrets.service import put_secret
from app.settings import Settings
from app.xgen.mapping.draft import Draft


class SecretNames:
    """Names that nobody without the key file can make of a value, or get a value from."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, value: str) -> str:
        """Return the name; raises KeyFileUnusable."""
        key = load_key(key_file(self._settings))
        content = value.encode("utf-8", "surrogatepass")
        return f"xgen-{hmac.new(key, b'xgen ' + content, hashlib.sha256).hexdigest()[:32]}"


def keep(session: Session, project_id: str, draft: Draft) -> None:
    """Move the form's secrets into the store; raises InvalidPayload for those it does not take."""
    for name in sorted(draft.secrets):  # in one order, so that two starts never wait for each other
        keep_one(session, project_id, name, *draft.secrets[name])


def keep_one(session: Session, project_id: str, name: str, field: str, value: str) -> None:
    """Move the value of a field into the store; raises InvalidPayload for what it does not take."""
    try:
        SecretValue.model_validate({"value": value})
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        problem = FieldProblem(pointer=f"/{field}", message=f"{field} is no secret: {reason}")
        raise InvalidPayload([problem]) from None
    put_secret(session, project_id, name, value)
