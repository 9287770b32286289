"""What a back-up says about itself: versions, and every file with its size and sha256."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
DATABASE = "polar.dump"
TRACKING = "mlflow.dump"
SETTINGS = "polar.toml"
SECRETS = "secrets.json"
SEALED_SECRETS = "secrets.sealed"
OBJECTS = "objects"
MODELS = "models"


class Entry(BaseModel):
    """One file of the back-up; objects of the store carry their key."""

    model_config = ConfigDict(extra="forbid")

    file: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    key: str | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.file} ({self.key})" if self.key else self.file


class Defect(BaseModel):
    """What the database refers to and the store did not hold when the back-up was taken.

    Not `needed`: it belongs to an ended job, and may have been about to be deleted.
    """

    model_config = ConfigDict(extra="forbid")

    key: str
    problem: str
    needed: bool


class Versions(BaseModel):
    """Of what the back-up is; `postgres` as in `server_version_num`, `tables` as in Alembic."""

    model_config = ConfigDict(extra="forbid")

    polar: str
    postgres: int
    tables: str
    mlflow: str | None = None


class Manifest(BaseModel):
    """The last file of a back-up: without it there is none."""

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    taken_at: datetime
    versions: Versions
    bucket: str
    next_transaction: int = Field(description="No transaction of the snapshot has this id.")
    former_models: list[str] = Field(
        default_factory=list, description="Where the folder of models has lain: specs name it."
    )
    files: list[Entry]
    defects: list[Defect] = Field(default_factory=list)

    def find(self, file: str) -> Entry | None:
        """Return a file by its name."""
        return next((entry for entry in self.files if entry.file == file), None)
