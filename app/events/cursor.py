"""Positions in event streams, and the ids by which clients name them.

A job's id is the event's `seq`. Over all jobs it is opaque: transaction id, job and seq, because
transactions commit in another order than they began.
"""

import base64
import binascii

from app.errors import BadRequest

Position = tuple[int, str, int]
"""(seq, "", 0) within a job; (transaction id, job id, seq) over all jobs. Both grow."""

START: Position = (0, "", 0)
_MAX = 2**63 - 1
_WAY_OUT = "use the id of an event that you received, or 0 to begin at the start"


def parse_seq(text: str) -> int:
    """Return a `seq` that a client sent; raises BadRequest."""
    if text.isascii() and text.isdigit() and int(text[:20]) <= _MAX:
        return int(text)
    raise invalid_cursor(text)


def invalid_cursor(text: str, why: str = "it is not an event id") -> BadRequest:
    """Return the error for a cursor that cannot be."""
    return BadRequest(f"cursor {text[:60]!r}: {why}; {_WAY_OUT}", "invalid_cursor")


def encode_position(position: Position) -> str:
    """Return the opaque id of a position over all jobs."""
    raw = f"{position[0]}.{position[1]}.{position[2]}".encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_position(text: str) -> Position:
    """Return the position that an opaque id stands for (`0`: the start); raises BadRequest."""
    if text == "0":
        return START
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        xid, job_id, seq = raw.decode("ascii").split(".")
    except (binascii.Error, ValueError) as error:
        raise invalid_cursor(text) from error
    position = (parse_seq(xid), job_id, parse_seq(seq))
    if encode_position(position) != text or not (job_id.isalnum() or "_" in job_id or not job_id):
        raise invalid_cursor(text)
    return position
