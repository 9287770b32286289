"""A bucket that takes nothing more, as one whose quota is used up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from polar.stack.services import SeaweedFS, weed_binary


@contextmanager
def full(seaweed: SeaweedFS, bucket: str) -> Iterator[None]:
    """Have the store refuse whatever is written to the bucket, until the block ends."""
    place = f"fs.configure -locationPrefix=/buckets/{bucket}/"
    _shell(seaweed, f"{place} -readOnly -apply")
    try:
        yield
    finally:
        _shell(seaweed, f"{place} -delete -apply")


def _shell(seaweed: SeaweedFS, command: str) -> None:
    """This is what the store's own quota check does to a bucket that is above its quota."""
    ports = seaweed.ports
    subprocess.run(
        [str(weed_binary()), "shell", f"-master=127.0.0.1:{ports.master}.{ports.master_grpc}"],
        input=f"{command}\n",
        text=True,
        capture_output=True,
        env={**os.environ, **seaweed.command().environment},
        timeout=60,
        check=True,
    )
