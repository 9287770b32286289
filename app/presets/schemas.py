"""Bodies and answers of presets, and the body of a job that is made from one."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.jobs.schemas import Time
from trainer_core.spec import Strict

PresetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class PresetBody(Strict):
    """What is kept under the name."""

    spec: dict[str, Any] = Field(
        min_length=1,
        description="A part of what `POST /jobs` takes, 64 KiB of JSON at most. It is checked as "
        "far as it goes; secrets are named, as in a job.",
    )
    description: str = Field("", max_length=500)


class PresetOut(BaseModel):
    """A preset."""

    name: str
    description: str
    spec: dict[str, Any]
    created_at: Time
    updated_at: Time


class PresetList(BaseModel):
    """A page of the project's presets, by name."""

    items: list[PresetOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class PresetQuery(BaseModel):
    """Paging of `GET /presets`."""

    limit: int = Field(50, ge=1, le=200, description="Presets on a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")


class PresetJob(Strict):
    """A job from a preset: the other fields are a JobSpec's, and go before the preset's."""

    model_config = ConfigDict(extra="allow")

    # Whatever is no name is told so by name; as a wrong type it would be taken for no job at all.
    preset: Any = Field(
        description="The preset's name. The body is merged into it (RFC 7386): objects merge, null "
        "takes a field out, the rest replaces.",
        json_schema_extra={"type": "string", "minLength": 1},
    )

    def own(self) -> dict[str, Any]:
        """Return the fields of the job itself."""
        return dict(self.model_extra or {})
