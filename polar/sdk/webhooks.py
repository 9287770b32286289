"""Webhooks: addresses that are told what happens, signed and at least once."""

from collections.abc import Sequence

from polar.sdk import answers
from polar.sdk.calls import Call, Json, nothing, part
from polar.sdk.operations import D, Resource, operation, pages
from polar.sdk.reading import as_, items_of


def _at(webhook_id: str) -> str:
    return f"/webhooks/{part(webhook_id)}"


def _given(**fields: object) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


class Webhooks(Resource[D]):
    """`/webhooks`."""

    @operation
    def list(self) -> Call[Sequence[answers.WebhookOut]]:
        """Return the project's webhooks, oldest first."""
        read = items_of(answers.WebhookList, lambda page: page.items)
        return Call(method="GET", path="/webhooks", read=read)

    @operation
    def create(
        self,
        url: str,
        *,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> Call[answers.WebhookWithSecret]:
        """Have `url` told of these events, or of all; `secret` is in this answer only."""
        body = _given(url=url, events=events, description=description, active=active)
        read = as_(answers.WebhookWithSecret)
        return Call(method="POST", path="/webhooks", json=body, read=read)

    @operation
    def get(self, webhook_id: str) -> Call[answers.WebhookOut]:
        """Return a webhook."""
        return Call(method="GET", path=_at(webhook_id), read=as_(answers.WebhookOut))

    @operation
    def update(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> Call[answers.WebhookOut]:
        """Change what is given; what is None stays."""
        body = _given(url=url, events=events, description=description, active=active)
        path, read = _at(webhook_id), as_(answers.WebhookOut)
        return Call(method="PATCH", path=path, json=body, again=True, read=read)

    @operation
    def delete(self, webhook_id: str) -> Call[None]:
        """Tell this address nothing more."""
        return Call(method="DELETE", path=_at(webhook_id), read=nothing)

    @operation
    def new_secret(self, webhook_id: str) -> Call[answers.WebhookWithSecret]:
        """Have deliveries signed with a new secret; `secret` is in this answer only."""
        path, read = f"{_at(webhook_id)}/secret", as_(answers.WebhookWithSecret)
        return Call(method="POST", path=path, read=read)

    @operation
    def test(self, webhook_id: str) -> Call[answers.DeliveryOut]:
        """Have something sent to it now."""
        path, read = f"{_at(webhook_id)}/test", as_(answers.DeliveryOut)
        return Call(method="POST", path=path, read=read)

    @operation
    def delivery_page(
        self,
        webhook_id: str,
        *,
        status: Sequence[str] | str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Call[answers.DeliveryPage]:
        """Return a page of its deliveries, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        path, read = f"{_at(webhook_id)}/deliveries", as_(answers.DeliveryPage)
        return Call(method="GET", path=path, query=query, read=read)

    deliveries = pages(delivery_page.describe)

    @operation
    def redeliver(self, webhook_id: str, delivery_id: str) -> Call[answers.DeliveryOut]:
        """Send a delivery once more."""
        path = f"{_at(webhook_id)}/deliveries/{part(delivery_id)}/redeliver"
        return Call(method="POST", path=path, read=as_(answers.DeliveryOut))
