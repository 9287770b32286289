"""`make bench`: every measurement with its limit, one after the other, and one table at the end.

`BENCH_QUICK=1` takes fewer rounds; `python -m bench NAME …` only some of them.
"""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Each in a process of its own: what one has imported or forked must not weigh on the next.
MEASUREMENTS = {
    "trainer": "trainer_core against a bare TRL script",
    "stack": "a trainer under the full stack against a bare TRL script",
    "tasks": "every task type against a bare script of the library beneath it",
    "peers": "trainer_core against ms-swift and LLaMA-Factory",
    "packing": "packing against padding, and against TRL's own",
    "auto": "what is left open against what could be said instead",
    "ddp": "two connected processes against two unconnected ones",
    "quantized": "bytes of 4-bit layers against bf16",
    "prepare": "preparation against datasets.map, and its memory",
    "plans": "a plan of all rows against the preparation that a job needs anyway",
    "warm": "request → first step: warm stack, cold script, Ray",
    "api": "POST /jobs against bare psycopg and Celery; memory of the API",
    "cli": "CPU of `polar --help`; `polar list` against a bare httpx script",
    "streams": "events: fan-out, ingest, other requests meanwhile, a full database",
}


def main(names: list[str]) -> int:
    """Run the measurements; 1 when a limit is broken."""
    chosen = names or list(MEASUREMENTS)
    unknown = [name for name in chosen if name not in MEASUREMENTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known are {', '.join(MEASUREMENTS)}")
        return 2
    results = []
    for name in chosen:
        print(f"\n== {name}: {MEASUREMENTS[name]}", flush=True)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=ROOT, check=False)
        results.append((name, done.returncode, time.monotonic() - began))
    print("\n== all")
    for name, code, seconds in results:
        verdict = "within its limits" if code == 0 else "NOT within its limits"
        print(f"{name:<9} {verdict:<22} {seconds:>5.0f} s")
    return int(any(code for _, code, _ in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
