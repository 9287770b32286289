"""What ranks tell each other: who has something to do alone takes the time that it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import ROOT

pytestmark = pytest.mark.train

WAIT = 5  # seconds that torch waits for another rank, instead of an hour

LATE = f"""
import json, os, sys, time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed

from trainer_core import ranks

ranks._LONGEST_WAIT = timedelta(seconds={WAIT})
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
number = 0 if os.fork() else 1
ours = ranks.ConnectedRanks(number, 2, Path(sys.argv[1]), use_cpu=True)
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
    assert os.wait()[1] == 0
    print(json.dumps(told))
"""


def test_a_rank_waits_longer_than_torch_for_one_that_is_busy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path / "둘 store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (first, _), (second, waited) = json.loads(done.stdout)
    assert (first, second) == (0, 1)
    assert waited > WAIT
