"""Whether clients ask this process for anything: what is long and can wait leaves them room."""

import time

_RECENT = 1.0  # seconds
_last_answer = float("-inf")


def answered() -> None:
    """Note that a request was answered now."""
    global _last_answer
    _last_answer = time.monotonic()


def others_ask() -> bool:
    """Say whether a request was answered within the last second; open streams do not count."""
    return time.monotonic() - _last_answer < _RECENT
