"""What can be done with webhooks and their deliveries."""

import json
import re
from typing import Any

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from app.errors import BadRequest, Conflict, FieldProblem, InvalidPayload, NotFound
from app.ids import new_id
from app.models import Webhook, WebhookDelivery
from app.secrets.cipher import decrypt, encrypt, key_file, load_key
from app.settings import get_settings
from app.webhooks import outbox, store
from app.webhooks.address import refusal
from app.webhooks.outbox import Happened
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
from app.webhooks.signing import new_secret

MOST = 20
_CURSOR = re.compile(r"dlv_[0-9A-HJKMNP-TV-Z]{26}")


def _context(project_id: str, webhook_id: str) -> str:
    return f"{project_id}/webhooks/{webhook_id}"


def check_url(url: str) -> None:
    """Raise InvalidPayload for an address that may not be called.

    Asks for its name's addresses, which takes as long as it takes: on a thread, and outside of
    every transaction.
    """
    if reason := refusal(url):
        raise InvalidPayload([FieldProblem(pointer="/url", message=reason)])


def create_webhook(session: Session, project_id: str, new: NewWebhook) -> WebhookWithSecret:
    """Write a webhook with a secret of its own; raises Conflict when there are too many."""
    lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    session.execute(lock, {"name": f"webhooks/{project_id}"})
    query = select(func.count()).where(Webhook.project_id == project_id)
    if (session.scalar(query) or 0) >= MOST:
        message = f"a project has {MOST} webhooks at most: change or delete one of them"
        raise Conflict(message, "too_many_webhooks")
    webhook_id, secret = new_id("wh"), new_secret()
    row = Webhook(
        id=webhook_id,
        project_id=project_id,
        ciphertext=_sealed(project_id, webhook_id, secret),
        **_fields(new),
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return WebhookWithSecret(**_view(row, 0).model_dump(), secret=secret)


def _fields(given: NewWebhook) -> dict[str, Any]:
    return given.model_dump(exclude_unset=isinstance(given, WebhookPatch))


def _sealed(project_id: str, webhook_id: str, secret: str) -> bytes:
    return encrypt(load_key(key_file(get_settings())), secret, _context(project_id, webhook_id))


def secret_of(project_id: str, webhook_id: str, ciphertext: bytes) -> str:
    """Return the secret that a webhook's deliveries are signed with; raises KeyFileUnusable."""
    key = load_key(key_file(get_settings()))
    return decrypt(key, ciphertext, _context(project_id, webhook_id))


def find_webhook(
    session: Session, project_id: str, webhook_id: str, *, lock: bool = False
) -> Webhook:
    """Return the project's webhook; raises NotFound."""
    query = select(Webhook).where(Webhook.project_id == project_id, Webhook.id == webhook_id)
    found = session.scalar(query.with_for_update(key_share=True) if lock else query)
    if found is None:
        raise NotFound(f"there is no webhook {webhook_id}", "webhook_not_found")
    return found


def _pending(session: Session, project_id: str) -> dict[str, int]:
    query = (
        select(WebhookDelivery.webhook_id, func.count())
        .where(WebhookDelivery.project_id == project_id, WebhookDelivery.status == "pending")
        .group_by(WebhookDelivery.webhook_id)
    )
    return {row[0]: row[1] for row in session.execute(query)}


def list_webhooks(session: Session, project_id: str) -> WebhookList:
    """Return the project's webhooks."""
    query = select(Webhook).where(Webhook.project_id == project_id).order_by(Webhook.id)
    pending = _pending(session, project_id)
    rows = session.scalars(query)
    return WebhookList(items=[_view(row, pending.get(row.id, 0)) for row in rows])


def show_webhook(session: Session, project_id: str, webhook_id: str) -> WebhookOut:
    """Return a webhook; raises NotFound."""
    row = find_webhook(session, project_id, webhook_id)
    return _view(row, _pending(session, project_id).get(webhook_id, 0))


def _view(row: Webhook, pending: int) -> WebhookOut:
    here = f"/webhooks/{row.id}"
    same = WebhookOut.model_fields.keys() - {"pending", "links"}
    return WebhookOut(
        **{name: getattr(row, name) for name in same},
        pending=pending,
        links={"self": here, "deliveries": f"{here}/deliveries", "test": f"{here}/test"},
    )


def patch_webhook(
    session: Session, project_id: str, webhook_id: str, patch: WebhookPatch
) -> WebhookOut:
    """Change what is given; raises NotFound. What waits goes to the new address, too.

    Of a webhook that is switched off nothing waits: it is not sent when it is switched on again.
    """
    row = find_webhook(session, project_id, webhook_id, lock=True)
    # Also when it is switched on: what happened just before the switch may have been written after.
    if patch.active is not row.active and "active" in patch.model_fields_set:
        store.drop_pending(session, row.id)
    for name, value in _fields(patch).items():
        setattr(row, name, value)
    row.updated_at = session.scalars(select(func.now())).one()
    session.flush()
    session.execute(text("SELECT pg_notify('polar_work', 'webhooks')"))
    return show_webhook(session, project_id, webhook_id)


def replace_secret(session: Session, project_id: str, webhook_id: str) -> WebhookWithSecret:
    """Give a webhook a new secret; from now on everything is signed with it. Raises NotFound."""
    row = find_webhook(session, project_id, webhook_id, lock=True)
    secret = new_secret()
    row.ciphertext = _sealed(project_id, webhook_id, secret)
    session.flush()
    shown = show_webhook(session, project_id, webhook_id)
    return WebhookWithSecret(**shown.model_dump(), secret=secret)


def delete_webhook(session: Session, project_id: str, webhook_id: str) -> None:
    """Delete a webhook with its deliveries; raises NotFound."""
    row = find_webhook(session, project_id, webhook_id, lock=True)
    session.execute(delete(Webhook).where(Webhook.id == row.id))


def list_deliveries(
    session: Session, project_id: str, webhook_id: str, query: DeliveryQuery
) -> DeliveryPage:
    """Return a page of deliveries; raises NotFound, and BadRequest for a cursor that is none."""
    find_webhook(session, project_id, webhook_id)
    wanted = select(WebhookDelivery).where(WebhookDelivery.webhook_id == webhook_id)
    if query.status is not None:
        wanted = wanted.where(WebhookDelivery.status == query.status)
    if query.cursor is not None:
        if not _CURSOR.fullmatch(query.cursor):
            message = f"cursor {query.cursor[:60]!r} is not from a page of this list"
            raise BadRequest(message, "invalid_cursor")
        wanted = wanted.where(WebhookDelivery.id < query.cursor)
    newest = wanted.order_by(WebhookDelivery.id.desc()).limit(query.limit + 1)
    rows = session.scalars(newest).all()
    items = [_delivery(row) for row in rows[: query.limit]]
    more = len(rows) > query.limit
    return DeliveryPage(items=items, next_cursor=items[-1].id if more else None)


def _delivery(row: WebhookDelivery) -> DeliveryOut:
    same = DeliveryOut.model_fields.keys() - {"payload", "next_at"}
    return DeliveryOut(
        **{name: getattr(row, name) for name in same},
        payload=json.loads(row.body),
        next_at=row.next_at if row.status == "pending" else None,
    )


def redeliver(session: Session, project_id: str, webhook_id: str, delivery_id: str) -> DeliveryOut:
    """Have a delivery made once more, with the same id and body. Raises NotFound and Conflict."""
    _check_active(find_webhook(session, project_id, webhook_id, lock=True))
    if not store.again(session, project_id, webhook_id, delivery_id):
        raise NotFound(f"there is no delivery {delivery_id}", "delivery_not_found")
    return _delivery(session.get_one(WebhookDelivery, delivery_id))


def send_test(session: Session, project_id: str, webhook_id: str) -> DeliveryOut:
    """Tell the endpoint that it is there; raises NotFound, and Conflict when it is switched off."""
    _check_active(find_webhook(session, project_id, webhook_id, lock=True))
    content = {"data": {}, "links": {"self": f"/webhooks/{webhook_id}"}}
    now = session.scalars(select(func.now())).one()
    [delivery_id] = outbox.write(
        session, [webhook_id], Happened(project_id, outbox.TEST, now, content)
    )
    return _delivery(session.get_one(WebhookDelivery, delivery_id))


def _check_active(row: Webhook) -> None:
    if not row.active:
        message = f'webhook {row.id} is switched off: PATCH it with {{"active": true}} first'
        raise Conflict(message, "webhook_inactive")
