"""The words for states that XGen's pages understand; any other is polled for ever."""

from typing import Literal

from app.holds.schemas import HoldState
from app.jobs.lifecycle import Status

Word = Literal["pending", "running", "completed", "failed"]

WORD_OF_HOLD: dict[HoldState, Word] = {
    "held": "running",
    "used": "completed",
    "given_back": "completed",
    "over": "completed",
    "host_gone": "failed",
}
WORD_OF: dict[Status, Word] = {
    Status.QUEUED: "pending",
    Status.PROVISIONING: "pending",
    Status.PAUSED: "pending",
    Status.RUNNING: "running",
    Status.FINALIZING: "running",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "failed",
}
