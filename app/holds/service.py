"""Keeping a device for a project's next job: what can be had, and why another cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row
from sqlalchemy.orm import Session

from app.attempts.store import wake
from app.errors import Conflict, NotFound
from app.holds import store
from app.holds.schemas import HoldState, OfferList, OfferOut, State
from app.settings import get_settings

MOST = 100
_LOCAL = "local:"
_LARGEST_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Hold:
    """A device kept for a project."""

    id: str
    worker_id: str
    device: int
    device_name: str
    secret: str | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    state: HoldState
    attempt_id: str | None
    job_id: str | None

    @property
    def offer_id(self) -> str:
        """The offer that was taken."""
        return offer_id(self.worker_id, self.device)


def offer_id(worker_id: str, index: int) -> str:
    """Return the id under which a device is offered."""
    return f"{_LOCAL}{worker_id}:{index}"


def list_offers(session: Session, project_id: str) -> OfferList:
    """Return the devices of hosts, each with what keeps it from being held."""
    return OfferList(items=[_offer(row, project_id) for row in store.devices(session)])


def _offer(row: Row[Any], project_id: str) -> OfferOut:
    return OfferOut(
        offer_id=offer_id(row.worker_id, row.number),
        worker_id=row.worker_id,
        device=row.number,
        kind=row.kind,
        name=row.name,
        memory_gb=row.memory_gb,
        state=_state(row, project_id),
    )


def _state(row: Row[Any], project_id: str) -> State:
    if not (row.online and row.used_by_jobs):
        return "unavailable"
    if row.busy:
        return "busy"
    if row.held_by is None:
        return "free"
    return "held" if row.held_by == project_id else "held_for_others"


def hold(
    session: Session, project_id: str, offer: str, keep: Callable[[], str | None]
) -> tuple[Hold, bool]:
    """Keep the offered device for the project's next job; says whether it was kept before.

    A repeated call gets the hold that is open: never two. `keep` stores what the caller sent along
    for it and returns its name; it is called for a new hold alone. Raises NotFound and Conflict.
    """
    device = store.lock_device(session, *_place(offer))
    if device is None:
        raise _unknown(offer)
    held = store.hold_of(session, device.worker_id, device.number)
    if held is not None and held.project_id == project_id:
        return _out(held), True
    _check(offer, device, held)
    _check_number(session, project_id, offer)
    made = store.insert_hold(session, project_id, device, keep())
    return _out(made), False


def _place(offer: str) -> tuple[str, int]:
    worker_id, _, index = offer.removeprefix(_LOCAL).rpartition(":")
    if not offer.startswith(_LOCAL):
        raise Conflict(
            f"offer_id {offer!r} cannot be had: this service rents no machines. Start the training "
            "without one: it runs on the hosts that have joined as soon as one has room; "
            "GET /api/train/offers lists the devices that can be held for it",
            "no_rented_machines",
        )
    if not (worker_id and index.isascii() and index.isdigit() and int(index) <= _LARGEST_INDEX):
        raise _unknown(offer)
    return worker_id, int(index)


def _unknown(offer: str) -> NotFound:
    return NotFound(
        f"offer_id {offer!r}: there is no such device; GET /api/train/offers lists them",
        "offer_not_found",
    )


def _check(offer: str, device: Row[Any], held: Row[Any] | None) -> None:
    """Raise Conflict with the reason where the device cannot be had."""
    others = "; GET /api/train/offers lists what is free, and a job waits in line without any"
    if not device.online:
        why = "is drained" if device.draining else "does not answer"
        raise Conflict(f"offer_id {offer!r}: its host {why}{others}", "offer_unavailable")
    if not device.used_by_jobs:
        message = f"offer_id {offer!r} is a CPU, and jobs run on GPUs while a host has some{others}"
        raise Conflict(message, "offer_unavailable")
    if device.busy:
        raise Conflict(f"offer_id {offer!r} is busy with a job{others}", "offer_taken")
    if held is not None:
        until = f"{held.expires_at:%H:%M:%S} UTC"
        message = f"offer_id {offer!r} is held for another project until {until}{others}"
        raise Conflict(message, "offer_taken")


def _check_number(session: Session, project_id: str, offer: str) -> None:
    """Raise Conflict where the project holds as many devices as it may."""
    most = get_settings().holds
    if store.count_open(session, project_id) >= most:
        raise Conflict(
            f"offer_id {offer!r}: the project holds {most} devices already, and more it may not "
            "(POLAR_HOLDS): start a job, which uses one up, or give one back with "
            "DELETE /api/train/instances/{instance_id}; a job waits in line without any",
            "too_many_holds",
        )


def give_back(session: Session, project_id: str, hold_id: str) -> Hold:
    """End the hold before a job has used it; silent where it is over. Raises NotFound."""
    store.end(session, project_id, hold_id)
    found = find_hold(session, project_id, hold_id)
    wake(session, "holds")
    return found


def find_hold(session: Session, project_id: str, hold_id: str) -> Hold:
    """Return a hold of the project; raises NotFound."""
    row = store.get_hold(session, project_id, hold_id)
    if row is None:
        message = f"there is no instance {hold_id}; GET /api/train/instances lists them"
        raise NotFound(message, "hold_not_found")
    return _out(row)


def list_holds(session: Session, project_id: str) -> list[Hold]:
    """Return the project's newest holds, open or over."""
    return [_out(row) for row in store.list_holds(session, project_id, MOST)]


def _out(row: Row[Any]) -> Hold:
    values = dict(row._mapping)
    unended: HoldState = "held" if values.pop("open") else "over"
    state: HoldState = values.pop("reason") or unended
    del values["project_id"]
    return Hold(**values, state=state)
