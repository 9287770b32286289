"""A stack of stand-in processes under the real supervisor: standin.py HOME."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from polar.stack import proctree, spawn
from polar.stack.home import Home
from polar.stack.processes import CORE, SERVICES, WORKERS, Process
from polar.stack.spawn import Command
from polar.stack.state import StackState
from polar.stack.supervisor import Supervisor, supervise

# Starts grandchildren in sessions of their own, as Celery's handlers start holders of leases: one
# ends when it is asked to, one ignores that, one has to be killed.
FORKER = """
import subprocess, sys, time
holder = '''
import signal, time
def end(*_):
    with open('order', 'a') as file:
        file.write('detached stops\\\\n')
    raise SystemExit
signal.signal(signal.SIGTERM, {})
open('/proc/self/comm', 'w').write('polar-lease')
time.sleep(600)
'''
for handler in ('end', 'signal.SIG_IGN'):
    subprocess.Popen([sys.executable, '-c', holder.format(handler)], start_new_session=True)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
time.sleep(600)
"""
# Records its starts, and ends by itself as long as the file `flap` is there.
FLAPPER = """
import pathlib, time
with open('starts', 'a') as file:
    file.write(f'{time.monotonic()}\\n')
while not pathlib.Path('flap').exists():
    time.sleep(0.02)
"""
ORDERED = """
import signal, sys, time
def note(what):
    with open('order', 'a') as file:
        file.write(f'{sys.argv[1]} {what}\\n')
def end(*_):
    note('stops')
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
note('starts')
time.sleep(600)
"""


def python(code: str, *arguments: str) -> Command:
    return Command([sys.executable, "-c", code, *arguments])


def main() -> int:
    home = Home(Path(sys.argv[1]))
    home.lay()
    spawn.die_with_parent(signal.SIGTERM)
    spawn.adopt_orphans()
    order = home.path / "logs" / "order"

    def has_started(name: str) -> bool:
        return order.exists() and f"{name} starts" in order.read_text()

    processes = [
        Process("first", python(ORDERED, "first"), SERVICES, lambda _: has_started("first")),
        Process("flapper", python(FLAPPER), CORE, None),
        Process("second", python(ORDERED, "second"), CORE, lambda _: has_started("second")),
        Process("forker", python(FORKER), WORKERS, None),
    ]
    if (home.path / "broken").exists():
        processes.append(Process("broken", python("raise SystemExit(3)"), CORE, lambda _: False))
    state = StackState(identity=proctree.identity(os.getpid()), url="http://127.0.0.1:1")
    with home.claimed("stand-in"):
        return asyncio.run(supervise(Supervisor(home, processes, state, detached_grace=1.0)))


if __name__ == "__main__":
    sys.exit(main())
