"""Readiness: an answer counts only when it is the process's own."""

import os
import socket
import subprocess
import sys

from polar.stack.readiness import listens
from tests.services import wait_until

SERVE = "import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"


def test_a_port_is_its_listeners_and_its_parents_but_no_strangers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        assert listens(os.getpid(), port)
        stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            assert not listens(stranger.pid, port)
        finally:
            stranger.kill()
            stranger.wait()
    assert not listens(os.getpid(), port)
    assert not listens(stranger.pid, port)
    child = subprocess.Popen([sys.executable, "-c", SERVE.format(port=port)])
    try:
        wait_until(lambda: listens(child.pid, port))
        assert listens(os.getpid(), port)
    finally:
        child.kill()
        child.wait()
