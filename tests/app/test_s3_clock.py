"""A host whose date is an hour wrong reads, writes and signs as one whose date is right."""

import json
import subprocess
import sys

import httpx
import pytest

from tests.drills.clock import can_shift
from tests.services import ROOT, S3

PROGRAM = """
import json, sys
sys.path[:0] = [sys.argv[1]]
from tests.drills.clock import shift
shift(float(sys.argv[2]))
from app.settings import Settings
from app.storage import Store
store = Store(Settings())
store.put_bytes("a/b", b"content")
there = store.head("a/b"), store.head("a/none")
print(json.dumps([store.get_bytes("a/b", 100).decode(), *there, store.presign_get("a/b")]))
"""


@pytest.mark.skipif(not can_shift(), reason="the date is shifted in the code of x86-64's libc")
@pytest.mark.parametrize("seconds", [3600, -3600, 0])
def test_b35_the_stores_date_counts(s3: S3, seconds: int):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT), str(seconds)],
        env={
            "PATH": "/usr/bin:/bin",
            "POLAR_S3_ENDPOINT": s3.endpoint,
            "POLAR_S3_ACCESS_KEY": s3.access_key,
            "POLAR_S3_SECRET_KEY": s3.secret_key,
            "POLAR_S3_BUCKET": s3.bucket,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    content, size, nothing, url = json.loads(done.stdout)
    assert (content, size, nothing) == ("content", 7, None)
    assert httpx.get(url, trust_env=False).text == "content"
