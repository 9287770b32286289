"""Signs S3 requests with the store's date, where this host's is wrong.

A store refuses what was signed more than 15 minutes before or after its own time. Its answer says
what time that is, so the difference is learnt from the refusal and the request is sent again.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import (
    AUTH_TYPE_MAPS,
    SIGV4_TIMESTAMP,
    S3SigV4Auth,
    S3SigV4QueryAuth,
)

_TOLERATED = timedelta(minutes=5)  # a store allows 15
_log = logging.getLogger(__name__)
_behind: dict[str, timedelta] = {}  # by the store's host and port: its date minus ours


class _ByTheStoresDate:
    def _modify_request_before_signing(self, request: Any) -> None:
        behind = _behind.get(urlsplit(request.url).netloc)
        if behind is not None:
            ours = datetime.strptime(request.context["timestamp"], SIGV4_TIMESTAMP)  # noqa: DTZ007
            request.context["timestamp"] = (ours + behind).strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]


class _HeaderAuth(_ByTheStoresDate, S3SigV4Auth):
    """Signatures in a header."""


class _QueryAuth(_ByTheStoresDate, S3SigV4QueryAuth):
    """Signatures in a URL."""


# botocore has no hook for the date; its table of signers is the smallest place that has it.
AUTH_TYPE_MAPS.update({"s3v4": _HeaderAuth, "s3v4-query": _QueryAuth})


def follow_the_store(client: Any) -> None:
    """Have a boto3 client send what was refused for its date again, signed with the right one."""
    client.meta.events.register_first("needs-retry.s3", _learn)


def date_of(answer: Mapping[str, Any]) -> datetime:
    """Return the store's own time when it gave this answer."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _learn(response: Any, attempts: int, request_dict: dict[str, Any], **_: Any) -> float | None:
    """Return 0, to try again at once, after a refusal for the date; else let others decide."""
    if response is None or response[0].status_code != 403 or attempts > 2:
        return None
    try:
        there = parsedate_to_datetime(response[0].headers["date"])
    except (KeyError, ValueError):
        return None
    store = urlsplit(request_dict["url"]).netloc
    behind = there - datetime.now(UTC)
    if abs(behind - _behind.get(store, timedelta())) < _TOLERATED:
        return None
    _log.warning("%s: this host's date differs from the store's by %s", store, behind)
    _behind[store] = behind
    return 0.0
