"""Devices that a project may have kept for its next job."""

from typing import Literal

from pydantic import BaseModel, Field

HoldState = Literal["held", "used", "given_back", "over", "host_gone"]
State = Literal["free", "busy", "held", "held_for_others", "unavailable"]


class OfferOut(BaseModel):
    """A device of a host that has joined."""

    offer_id: str = Field(examples=["local:gpu-box-1a2b3c:0"])
    worker_id: str
    device: int = Field(description="Its index on the host.")
    kind: str = Field(examples=["cuda"])
    name: str
    memory_gb: float | None
    state: State = Field(
        description="`held`: for this project. `unavailable`: its host is drained or away, or it is"
        " a CPU beside GPUs, which jobs pass over."
    )
    price_per_hour: float = Field(0.0, description="In US dollars; hosts that have joined cost 0.")


class OfferList(BaseModel):
    """Devices of hosts that were seen within a day."""

    items: list[OfferOut]
