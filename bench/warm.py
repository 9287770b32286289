"""From the request to the first optimizer step: our warm stack, a cold TRL script, Ray's jobs.

All three train the same tiny model on rows that nobody has seen before, one after the other in
turns. Ours begins with `POST /jobs` and includes the hints, tokenising, placement and leases.

    python -m bench.warm [--rounds 5] [--without-ray]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from bench import ray_jobs
from tests.e2e.harness import World, running_stack
from tests.trainer_core.tiny import make_tiny_model

LIMIT = 0.10
ROOT = Path(__file__).parent.parent
SCRIPT = str(Path(__file__).with_name("bare_sft.py"))
# One thread a job: a tiny model has no use for more, and threads that wait for each other on a
# busy machine would be what is measured.
SETTINGS = {"POLAR_CPU_SLOTS": str(os.cpu_count() or 1)}
Side = Callable[[str], float]


def write_rows(path: Path, salt: int) -> None:
    """Write 40 conversations that differ from those of every other round."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(40):
            messages = [
                {"role": "user", "content": f"Where is order {salt}-{number}?"},
                {"role": "assistant", "content": "It was sent this morning."},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def first_step(output: str) -> float:
    """Return the time that the script printed."""
    for line in output.splitlines():
        if "FIRST_STEP" in line:
            return float(line.rpartition(" ")[2])
    raise RuntimeError(f"the script did not reach its first step:\n{output[-2000:]}")


class Sides:
    """The three ways to the same first step; each takes a file's name and returns seconds."""

    def __init__(self, world: World, out: Path) -> None:
        self._world = world
        self._out = out

    def ours(self, rows: str) -> float:
        """A job of the warm stack."""
        began = time.time()
        job_id = self._world.submit(rows=rows, steps=3)
        self._world.until(job_id, "succeeded")
        [done] = [
            event["time"]
            for event in self._world.events(job_id)
            if event["type"] == "metrics" and event["data"]["step"] == 1 and "loss" in event["data"]
        ]
        return datetime.fromisoformat(done).timestamp() - began

    def _command(self, rows: str) -> list[str]:
        data = str(self._world.data / rows)
        return [sys.executable, SCRIPT, str(self._world.model), data, str(self._out)]

    def cold(self, rows: str) -> float:
        """The script, started from a shell."""
        began = time.time()
        done = subprocess.run(
            self._command(rows), capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
        )
        return first_step(done.stdout + done.stderr) - began

    def by_ray(self, ray: ray_jobs.Ray) -> Side:
        """The script, handed to Ray."""

        def side(rows: str) -> float:
            began = time.time()
            return first_step(ray.submit(*self._command(rows))) - began

        return side


def measure(sides: dict[str, Side], data: Path, rounds: int) -> Iterator[dict[str, float]]:
    """Yield each round's seconds, the sides in turns."""
    for number in range(rounds):
        found = {}
        for position, name in enumerate(sides):
            file = f"round-{number}-{position}.jsonl"
            write_rows(data / file, 10 * number + position)
            found[name] = sides[name](file)
        yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when the limit is broken."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "data").mkdir()
        model = make_tiny_model(folder / "models" / "tiny")
        world = stack.enter_context(
            running_stack(folder / "home", model, folder / "data", SETTINGS)
        )
        ways = Sides(world, folder / "out")
        sides: dict[str, Side] = {"ours, warm": ways.ours, "bare TRL, cold": ways.cold}
        if not options.without_ray:
            ray = stack.enter_context(ray_jobs.running())
            sides["ray job submit"] = ways.by_ray(ray)
        write_rows(folder / "data" / "first.jsonl", -1)
        ways.ours("first.jsonl")  # the first job of a new stack opens its connections
        print("seconds from the request to the first optimizer step")
        print(f"{'round':>5}  " + "  ".join(f"{name:>15}" for name in sides))
        rounds = []
        for number, found in enumerate(measure(sides, folder / "data", options.rounds), 1):
            rounds.append(found)
            print(f"{number:>5}  " + "  ".join(f"{s:>15.2f}" for s in found.values()), flush=True)
    return report(rounds)


def report(rounds: list[dict[str, float]]) -> int:
    """Print medians and ratios; 1 when the limit is broken."""
    names = list(rounds[0])
    medians = {name: statistics.median(found[name] for found in rounds) for name in names}
    print(f"{'median':>6} " + "  ".join(f"{seconds:>15.2f}" for seconds in medians.values()))
    worst = 0
    for name in names[1:]:
        ratio = medians[names[0]] / medians[name]
        good = ratio <= LIMIT
        worst |= not good
        word = "ok" if good else "TOO SLOW"
        print(f"warm start / {name}: ratio {ratio:.3f} (limit {LIMIT}): {word}")
    return worst


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    quick = bool(os.environ.get("BENCH_QUICK"))
    parser.add_argument("--rounds", type=int, default=2 if quick else 5)
    parser.add_argument("--without-ray", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
