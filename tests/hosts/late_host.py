"""A joined host whose clock is wrong: `python -m tests.hosts.late_host OPTIONS`.

OPTIONS as JSON: home and seconds.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from polar.stack import proctree, spawn
from polar.stack.home import Home
from polar.stack.joined import JoinedHost
from polar.stack.processes import Entry
from polar.stack.spawn import Command
from polar.stack.state import StackState
from polar.stack.supervisor import Supervisor, supervise
from tests.services import ROOT

CLOCK = ROOT / "tests" / "drills" / "clock.py"
OPTIONS = json.loads(sys.argv[1])


class LateHost(JoinedHost):
    """Every process of it, and whatever they fork, lives at another date."""

    def command(self, entry: Entry) -> Command:
        command = super().command(entry)
        python, _, *rest = command.arguments
        wrong = [python, str(CLOCK), str(OPTIONS["seconds"])]
        return Command([*wrong, *rest], command.environment)


def main() -> int:
    spawn.adopt_orphans()
    home = Home(Path(OPTIONS["home"]))
    home.lay()
    with home.claimed("late host"):
        identity = proctree.identity(os.getpid())
        host = LateHost(home, {}, identity)
        state = StackState(identity=identity, url="", role="host")
        return asyncio.run(supervise(Supervisor(home, host.processes(), state)))


if __name__ == "__main__":
    sys.exit(main())
