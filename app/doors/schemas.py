"""Bodies of the ways in for browsers."""

from pydantic import BaseModel, Field

from trainer_core.spec import Strict


class TicketRequest(Strict):
    """Which stream a ticket is for."""

    job_id: str | None = Field(
        None, max_length=40, description="A job's stream; left out: that of all jobs."
    )


class Ticket(BaseModel):
    """A ticket, good for one connection within a minute."""

    ticket: str
    path: str = Field(description="Where it is good, with the ticket: for `new EventSource(…)`.")
    expires_in: int = Field(description="Seconds.")
