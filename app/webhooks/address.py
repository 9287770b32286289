"""Which addresses webhooks may have: public ones, and what the operator allows.

As for trainers (`trainer_core.outbound`): the rule looks at addresses and never at names, and
whoever connects does so to an address that was looked at.
"""

import socket
from urllib.parse import SplitResult, urlsplit

from app.settings import get_settings
from trainer_core.outbound import Allowed, Refused, check

PORTS = {"http": 80, "https": 443}


class Unresolved(OSError):
    """The name has no address now."""


def split(url: str) -> SplitResult:
    """Return the parts of a URL that can be called; raises ValueError, which says what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("write http:// or https:// and a host")
    if parts.port == 0:  # asking for the port also refuses what is none
        raise ValueError("0 is no port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("leave user and password out: deliveries are signed instead")
    if parts.fragment:
        raise ValueError("leave the part behind # out: it is never sent")
    return parts


def port_of(parts: SplitResult) -> int:
    """Return the port that a URL means."""
    return parts.port or PORTS[parts.scheme]


def addresses(parts: SplitResult) -> list[str]:
    """Return the addresses of a URL's host now, all of which may be connected to.

    Raises Unresolved, and Refused where one of them is not public and the operator's
    `POLAR_OUTBOUND_ALLOW` does not name it.
    """
    host = str(parts.hostname)
    try:
        found = socket.getaddrinfo(host, port_of(parts), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"the name {host[:255]} cannot be resolved") from error
    allowed = Allowed(get_settings().outbound_allow)
    hosts = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for each in hosts:
        check(each, allowed)
    return hosts


def refusal(url: str) -> str | None:
    """Return why deliveries may not go to this URL; None where they may.

    A name that has no address now is taken: whether it has a good one is looked at each time.
    """
    try:
        addresses(split(url))
    except Unresolved:
        return None
    except Refused as error:
        return str(error.strerror)
    except ValueError as error:
        return str(error)
    return None
