"""Free TCP ports on an address of this machine."""

import random
import socket
from contextlib import ExitStack, suppress

LOOPBACK = "127.0.0.1"


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Say whether a server could listen on `host:port` now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((host, port))
            return True
    return False


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Return `count` different ports that are free now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]


def quiet_ports(count: int) -> list[int]:
    """Return different free ports below the range that the kernel gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        start = random.randint(20_000, 30_000)  # noqa: S311 - no secret
        port = first_free(start)
        if port not in found:
            found.append(port)
    return found


def first_free(start: int, host: str = LOOPBACK, tries: int = 200) -> int:
    """Return the first free port from `start` on.

    Raises OSError when none of the next `tries` ports is free.
    """
    for port in range(start, min(start + tries, 65536)):
        if is_free(port, host):
            return port
    raise OSError(f"no free port on {host} from {start} to {start + tries - 1}")
