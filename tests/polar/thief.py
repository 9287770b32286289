"""Run a stack of one listening process whose port is stolen: thief.py HOME TIMES [PORT [ASKED]].

With ASKED a service before it asks for the stop of everything while it is stopped itself. Writes
what became of it as JSON: the exit code, the ports that were taken, and a PortTaken.
"""

import json
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polar.stack import proctree, supervisor
from polar.stack.home import Home, PortTaken, choose_ports
from polar.stack.ports import LOOPBACK
from polar.stack.processes import CORE, SERVICES, WORKERS, Process
from polar.stack.spawn import Command
from polar.stack.state import StackState

LISTEN = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(600)
"""
ASK = """
import os, pathlib, signal, sys, time
def end(*_):
    os.kill(int(sys.argv[1]), signal.SIGTERM)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[2]).touch()
time.sleep(600)
"""


class OneProcess:
    """Stands in for the stack: one process that listens, and one that ends all when it does."""

    def __init__(self, *arguments: Any) -> None:
        self.port = arguments[1]["api"]
        self.asking = arguments[0].path / "asking"
        self.url, self.auth = f"http://{LOOPBACK}:{self.port}", "none"

    def processes(self) -> list[Process]:
        def answers(pid: int) -> bool:
            del pid
            with socket.socket() as probe:
                return probe.connect_ex((LOOPBACK, self.port)) == 0

        listen = Command([sys.executable, "-c", LISTEN, str(self.port)])
        stop = Command([sys.executable, "-c", f"import os; os.kill({os.getpid()}, 15)"])
        place = ((LOOPBACK, self.port),)
        ask = Command([sys.executable, "-c", ASK, str(os.getpid()), str(self.asking)])
        asker = Process("asker", ask, SERVICES, lambda _: self.asking.exists())
        return [
            *([asker] if sys.argv[4:] else []),
            Process("api", listen, CORE, answers, ports=place),
            Process("stopper", stop, WORKERS, None, required=False),
        ]


def main() -> None:
    home, times = Home(Path(sys.argv[1])), int(sys.argv[2])
    taken: list[int] = []
    held = ExitStack()

    def choose(*arguments: Any) -> dict[str, int]:
        """Choose as usual; then someone else takes the API's port before it listens."""
        chosen = choose_ports(*arguments)
        if len(taken) < times:
            held.enter_context(socket.create_server((LOOPBACK, chosen["api"])))
            taken.append(chosen["api"])
        return chosen

    supervisor.choose_ports = choose  # type: ignore[attr-defined]
    supervisor.Stack = OneProcess  # type: ignore[assignment,misc,attr-defined]
    state = StackState(identity=proctree.identity(os.getpid()), url="")
    port = int(sys.argv[3]) if sys.argv[3:] else None
    options = {"host": LOOPBACK, "auth": "none", "port": port or None}
    code, refused = None, None
    try:
        code = supervisor.run_stack(home, options, state)
    except PortTaken as failure:
        refused = str(failure)
    with Path(sys.argv[1], "result.json").open("w", encoding="utf-8") as file:
        json.dump({"code": code, "taken": taken, "refused": refused}, file)


if __name__ == "__main__":
    main()
