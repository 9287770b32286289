"""Streams under load: fan-out, ingest, other requests meanwhile, and a full database.

Every limit is a ratio of two sides that run in turns in the same run.

    python -m bench.streams [fanout|ingest|bystanders|full …]
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import streams_bystanders, streams_fanout, streams_full, streams_ingest

PARTS: dict[str, Callable[[Path], list[tuple[bool, str]]]] = {
    "fanout": streams_fanout.measure,
    "ingest": streams_ingest.measure,
    "bystanders": streams_bystanders.measure,
    "full": streams_full.measure,
}


def main(names: list[str]) -> int:
    """Measure and print; 1 when a limit is broken."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known are {', '.join(PARTS)}")
        return 2
    verdicts = []
    for name in names or list(PARTS):
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
            verdicts += PARTS[name](Path(folder))
    for good, said in verdicts:
        print(f"{'ok ' if good else 'NOT'} {said}")
    return 0 if all(good for good, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
