"""Bodies of `/secrets`."""

from datetime import datetime

from pydantic import BaseModel, Field, SecretStr, field_validator

from trainer_core.spec import Name, Strict

SHORTEST = 8


class SecretValue(Strict):
    """The value to be stored; it is never shown again."""

    value: SecretStr = Field(
        max_length=65_536,
        json_schema_extra={"minLength": SHORTEST, "writeOnly": True},
        description="At least 8 characters: shorter ones could not be told from other text when "
        "they are kept out of logs.",
    )

    @field_validator("value")
    @classmethod
    def _can_be_kept(cls, value: SecretStr) -> SecretStr:
        try:
            value.get_secret_value().encode()
        except UnicodeEncodeError:
            # The error itself would show the value.
            raise ValueError("it holds half of a character (a lone surrogate)") from None
        if len(value.get_secret_value().strip()) < SHORTEST:
            raise ValueError(
                f"at least {SHORTEST} characters are needed: a shorter value could not be told "
                "from other text when it is kept out of logs"
            )
        return value


class NewSecret(SecretValue):
    """A secret with its name."""

    name: Name


class SecretOut(BaseModel):
    """A secret without its value."""

    name: str
    created_at: datetime
    updated_at: datetime


class SecretList(BaseModel):
    """The project's secrets."""

    items: list[SecretOut]
