"""Where a process may connect to: public addresses, and what the operator allows.

What users name (a data set's own list of files, an address behind a redirect) decides where
libraries connect to. The guard looks at the very address of each connection, when it is made: no
spelling of a number, no redirect and no second answer of a name server passes it.

OSError
└── Refused    a connection that the guard did not allow; the message names the setting
"""

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

REACHABLE = "POLAR_REACHABLE"
"""Variable with host names, addresses and networks, parted by commas; set: the guard is on."""

_SETTING = "POLAR_OUTBOUND_ALLOW"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNFIT = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # the metadata service of one cloud has a public address
        "192.0.0.0/24",
        "192.88.99.0/24",
        "::/96",
        "64:ff9b:1::/48",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


class Refused(OSError):
    """A connection that the guard did not allow."""

    def __init__(self, address: str) -> None:
        super().__init__(
            errno.EACCES,
            f"a connection to {address} was refused: it is not a public address; an operator may "
            f"allow it in {_SETTING}",
        )


def is_public(address: Address) -> bool:
    """Whether an address belongs to the internet: not to a host, a local network or a cloud."""
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _UNFIT)
    )


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for: mapped, NAT64, 6to4."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour


class Allowed:
    """What may be connected to although it is not public: networks, and hosts by name."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._networks: list[Network] = []
        self._names: list[str] = []
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                self._names.append(entry)

    def __contains__(self, address: Address) -> bool:
        real = _embedded(address) or address
        if any(real in network for network in self._networks):
            return True
        return any(real in _addresses(name) for name in self._names)


def _addresses(name: str) -> set[Address]:
    """What a name means now; names are asked for again, for what they mean may change."""
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return set()
    addresses = (_parsed(str(entry[4][0])) for entry in found)
    return {_embedded(a) or a for a in addresses if a is not None}


def _parsed(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def configured(environment: dict[str, str]) -> list[str]:
    """Hosts that the operator's own settings name: the hub, the store, proxies, the allow-list."""
    urls = [
        environment.get(name, "")
        for name in ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
    ]
    hosts = [urlsplit(url).hostname for url in (*urls, *getproxies().values())]
    listed = environment.get(REACHABLE, "").split(",")
    return [host.strip() for host in (*hosts, *listed) if host and host.strip()]


def check(host: str, allowed: Allowed) -> None:
    """Raise Refused unless `host`, the address of a connection, may be connected to.

    A name is refused, too: between this look and the kernel's it could come to mean another host.
    """
    address = _parsed(host)
    if address is None or not (is_public(address) or address in allowed):
        raise Refused(host)


def guard() -> None:
    """Check each connection of this process from now on, where `POLAR_REACHABLE` is set.

    It cannot be taken off again. A person's own shell has no guard: nobody else's words are there.
    """
    if REACHABLE in os.environ:
        sys.addaudithook(_hook(Allowed(configured(dict(os.environ)))))


def _hook(allowed: Allowed) -> Callable[[str, Sequence[Any]], None]:
    def look(event: str, arguments: Sequence[Any]) -> None:
        if event not in _EVENTS:
            return
        connection, address = arguments[0], arguments[-1]
        if connection.family in _FAMILIES and isinstance(address, tuple):
            check(str(address[0]), allowed)

    return look
