"""`/webhooks`: addresses that are told what happens, and what they were told."""

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Response

from app.auth import Caller, Role, require
from app.db import transaction
from app.http import ULID, Answers
from app.webhooks import examples, service
from app.webhooks.schemas import (
    DeliveryOut,
    DeliveryPage,
    DeliveryQuery,
    NewWebhook,
    WebhookList,
    WebhookOut,
    WebhookPatch,
    WebhookWithSecret,
)

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

WebhookId = Annotated[str, Path(pattern=f"^wh_{ULID}$", description="Id of the webhook.")]
DeliveryId = Annotated[str, Path(pattern=f"^dlv_{ULID}$", description="Id of the delivery.")]
_ABSENT: Answers = {404: {"description": "No such webhook"}}
_OFF: Answers = {
    404: {"description": "No such webhook or delivery"},
    409: {"description": "The webhook is switched off"},
}
_MANY: Answers = {409: {"description": "The project has too many webhooks"}}


@router.post("", status_code=201, summary="Make a webhook", responses={**_MANY})
def create_webhook(
    new: Annotated[NewWebhook, Body(openapi_examples=examples.NEW)],
    response: Response,
    caller: Caller = require(Role.OPERATOR),
) -> WebhookWithSecret:
    """Have an address told what happens in the project. Its secret is shown in this answer only."""
    service.check_url(new.url)
    with transaction() as session:
        made = service.create_webhook(session, caller.project_id, new)
    response.headers["Location"] = f"/webhooks/{made.id}"
    return made


@router.get("", summary="List webhooks")
def list_webhooks(caller: Caller = require(Role.OPERATOR)) -> WebhookList:
    """Return the project's webhooks, oldest first, without their secrets."""
    with transaction() as session:
        return service.list_webhooks(session, caller.project_id)


@router.get("/{webhook_id}", summary="Look at a webhook", responses={**_ABSENT})
def get_webhook(webhook_id: WebhookId, caller: Caller = require(Role.OPERATOR)) -> WebhookOut:
    """Return a webhook: what it is told of, and whether that arrives."""
    with transaction() as session:
        return service.show_webhook(session, caller.project_id, webhook_id)


@router.patch("/{webhook_id}", summary="Change a webhook", responses={**_ABSENT})
def patch_webhook(
    webhook_id: WebhookId,
    patch: Annotated[WebhookPatch, Body(openapi_examples=examples.PATCH)],
    caller: Caller = require(Role.OPERATOR),
) -> WebhookOut:
    """Change what is given. Deliveries that wait go to the new address, too."""
    if "url" in patch.model_fields_set:
        service.check_url(patch.url)
    with transaction() as session:
        return service.patch_webhook(session, caller.project_id, webhook_id, patch)


@router.delete("/{webhook_id}", status_code=204, summary="Delete a webhook", responses={**_ABSENT})
def delete_webhook(webhook_id: WebhookId, caller: Caller = require(Role.OPERATOR)) -> None:
    """Delete a webhook with its log; what was not delivered is not sent any more."""
    with transaction() as session:
        service.delete_webhook(session, caller.project_id, webhook_id)


@router.post("/{webhook_id}/secret", summary="Replace a webhook's secret", responses={**_ABSENT})
def replace_secret(
    webhook_id: WebhookId, caller: Caller = require(Role.OPERATOR)
) -> WebhookWithSecret:
    """Sign with a new secret from now on. It is shown in this answer only."""
    with transaction() as session:
        return service.replace_secret(session, caller.project_id, webhook_id)


@router.post("/{webhook_id}/test", status_code=202, summary="Test a webhook", responses={**_OFF})
def send_test(webhook_id: WebhookId, caller: Caller = require(Role.OPERATOR)) -> DeliveryOut:
    """Send an event `webhook.test`, as any other; the deliveries tell what came of it."""
    with transaction() as session:
        return service.send_test(session, caller.project_id, webhook_id)


@router.get("/{webhook_id}/deliveries", summary="List deliveries", responses={**_ABSENT})
def list_deliveries(
    webhook_id: WebhookId,
    query: Annotated[DeliveryQuery, Query()],
    caller: Caller = require(Role.OPERATOR),
) -> DeliveryPage:
    """Return a page of what the webhook was told, newest first. It is kept for 30 days."""
    with transaction() as session:
        return service.list_deliveries(session, caller.project_id, webhook_id, query)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    summary="Deliver again",
    responses={**_OFF},
)
def redeliver(
    webhook_id: WebhookId, delivery_id: DeliveryId, caller: Caller = require(Role.OPERATOR)
) -> DeliveryOut:
    """Send a delivery once more, whatever became of it: the same id and body, signed anew."""
    with transaction() as session:
        return service.redeliver(session, caller.project_id, webhook_id, delivery_id)
