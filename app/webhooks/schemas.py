"""Bodies and answers of `/webhooks`."""

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from trainer_core.spec import Strict

Event = Literal[
    "job.started",
    "job.succeeded",
    "job.failed",
    "job.cancelled",
    "job.paused",
    "sweep.finished",
]
ALL: tuple[Event, ...] = get_args(Event)
DeliveryStatus = Literal["pending", "delivered", "failed"]
Url = Annotated[
    str,
    Field(
        max_length=2000,
        pattern=r"^https?://[\x21-\x7e]+$",
        description="Where deliveries are sent to, by `POST`. Its host must have public addresses "
        "only, but for those that the operator allows (`POLAR_OUTBOUND_ALLOW`).",
    ),
]
Events = Annotated[list[Event], Field(min_length=1, description="What it is told of.")]
Description = Annotated[str, Field(max_length=500)]


class NewWebhook(Strict):
    """An address that wants to be told."""

    url: Url
    events: Events = Field(default_factory=lambda: list(ALL))
    description: Description = ""
    active: bool = Field(
        default=True,
        description="False: nothing is sent, nor kept for later; what waits is `failed`.",
    )


class WebhookPatch(NewWebhook):
    """What changes; a field left out stays."""

    model_config = ConfigDict(validate_default=False)

    url: Url = Field(default_factory=str)


class WebhookOut(BaseModel):
    """A webhook without its secret."""

    id: str
    url: str
    events: list[Event]
    description: str
    active: bool
    failures: int = Field(description="Tries that failed since the last delivery that arrived.")
    pending: int = Field(description="Deliveries that are still to be made.")
    tried_at: datetime | None = Field(description="When something was last sent.")
    created_at: datetime
    updated_at: datetime
    links: dict[str, str]


class WebhookWithSecret(WebhookOut):
    """A webhook with a new secret, which is shown in this answer only."""

    secret: str = Field(description="Its deliveries are signed with it.")


class WebhookList(BaseModel):
    """The project's webhooks, oldest first."""

    items: list[WebhookOut]


class DeliveryOut(BaseModel):
    """What a webhook was told, or is to be."""

    id: str = Field(description="The header `X-Polar-Delivery`, the same at every try.")
    event: str
    status: DeliveryStatus
    attempts: int
    response_status: int | None = Field(description="What the endpoint answered last.")
    error: str | None = Field(
        description="Why the last try failed, or why there is no further one."
    )
    payload: dict[str, Any]
    created_at: datetime
    next_at: datetime | None = Field(description="When it is tried next, while it is pending.")
    delivered_at: datetime | None


class DeliveryPage(BaseModel):
    """A page of deliveries, newest first."""

    items: list[DeliveryOut]
    next_cursor: str | None = Field(description="Pass as `cursor` for the next page; null: end.")


class DeliveryQuery(BaseModel):
    """Filter and paging of deliveries."""

    status: DeliveryStatus | None = Field(None, description="Only those.")
    limit: int = Field(50, ge=1, le=200, description="Deliveries on a page.")
    cursor: str | None = Field(None, max_length=200, description="From the page before.")
