"""What ranks tell each other: who has something to do alone takes the time that it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ROOT

pytestmark = pytest.mark.train

WAIT = 5  # seconds that torch waits for another rank, instead of an hour

TWO = f"""
import json, os, sys, time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed

from trainer_core import ranks
from trainer_core.errors import RankLost

ranks._LONGEST_WAIT = timedelta(seconds={WAIT})
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
first = os.fork()
number = 1 if first and not os.fork() else 0
if first and not number:  # the launcher: collects both
    sys.exit(max(os.wait()[1], os.wait()[1]) and 1)
ours = ranks.ConnectedRanks(number, 2, Path(sys.argv[1]), use_cpu=True)
"""
LATE = f"""
began = time.monotonic()
if ours.leads:
    time.sleep({WAIT} + 1)  # as long as this rank measures something alone
ours.meet()
waited = time.monotonic() - began
for _ in range(2):
    ours.meet()
told = ours.collect((number, waited))
ours.leave()
if number == 0:
    print(json.dumps(told))
"""
GONE = """
ours.meet()
if ours.leads:
    os._exit(0)
try:
    ours.meet()
except RankLost as lost:
    print(lost)
"""


def together(folder: Path, what: str) -> str:
    """What two ranks say that do this after they are connected."""
    done = subprocess.run(
        [sys.executable, "-c", TWO + what, str(folder / "둘 store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sampled
def test_a_rank_waits_longer_than_torch_for_one_that_is_busy(tmp_path: Path) -> None:
    (first, _), (second, waited) = json.loads(together(tmp_path, LATE))
    assert (first, second) == (0, 1)
    assert waited > WAIT


@pytest.mark.sampled
def test_a_rank_does_not_wait_for_one_that_has_ended(tmp_path: Path) -> None:
    """Stopped while it measured alone, say: the rest need not be killed."""
    assert together(tmp_path, GONE) == "rank 0 ended while the others waited for it\n"
