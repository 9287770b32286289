"""Bodies of `/api-keys`."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trainer_core.spec import Strict

RoleName = Literal["viewer", "submitter", "operator", "admin"]


class NewKey(Strict):
    """A key to be made."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f]+$")
    role: RoleName = "submitter"


class KeyOut(BaseModel):
    """A key without its secret part."""

    id: str
    name: str
    role: RoleName
    prefix: Annotated[str, Field(description="The public part: `polar_<prefix>_…`.")]
    created_at: datetime
    last_used_at: datetime | None


class CreatedKey(KeyOut):
    """A new key; `key` is shown in this answer only."""

    key: str


class KeyList(BaseModel):
    """The project's keys."""

    items: list[KeyOut]
