"""Runs for the tests: launches of tiny models, and a process that runs them one by one."""

import json
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer_core.tiny import make_tiny_model, pack_rows, random_rows, write_prepared
from trainer_core.events import RunEvent, read_events

REPOSITORY = Path(__file__).parents[2]
_START_SECONDS = 240.0
_RUN_SECONDS = 120.0


@dataclass(frozen=True)
class World:
    """Models and prepared data that many runs share."""

    folder: Path
    model: Path
    plain: Path
    packed: Path

    @classmethod
    def make(cls, folder: Path) -> "World":
        """Attention dropout is on, so that every step draws random numbers."""
        rows, validation = random_rows(60), random_rows(7, seed=1)
        return cls(
            folder,
            make_tiny_model(folder / "model", attention_dropout=0.1),
            write_prepared(folder / "plain", rows, validation),
            write_prepared(folder / "packed", [*pack_rows(rows, 48)], [*pack_rows(validation, 48)]),
        )

    def launch(self, name: str, /, *, packed: bool = False, **changes: Any) -> dict[str, Any]:
        """A launch with its work folder `name`; `changes` go into the spec, dicts block by block.

        60 rows in batches of 4 are 15 steps an epoch (packed: about 24 rows, 6 steps); 2 epochs
        unless told otherwise.
        """
        spec: dict[str, Any] = {
            "task": {"type": "sft", "loss_on": "completion", "packing": packed},
            "model": {"source": "folder", "name_or_path": str(self.model)},
            "data": {"train": [{"source": "folder", "path": "unused.jsonl"}]},
            "training": {
                "learning_rate": 0.01,
                "num_train_epochs": 2,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 1,
            },
            "evaluation": {"strategy": "epoch"},
            "checkpoint": {"save_steps": 4},
        }
        # Only so that `resolve` knows that there are validation rows: they are prepared already.
        spec["data"]["validation"] = {"split_ratio": 0.1}
        for block, values in changes.items():
            merge = isinstance(spec.get(block), dict) and isinstance(values, dict)
            spec[block] = spec[block] | values if merge else values
        prepared = self.packed if packed else self.plain
        return {
            "attempt_id": name,
            "job_id": "job",
            "job_name": "tiny",
            "spec": spec,
            "paths": {"work": str(self.folder / name), "prepared": str(prepared)},
            "threads": 1,
        }


@dataclass(frozen=True)
class Outcome:
    """How a run ended: exit code (negative: killed by that signal), its folder and its events.

    `told` is what it said itself, also where its folder is gone: `late`, `exit`, `files`.
    """

    code: int
    work: Path
    told: dict[str, Any]

    @property
    def events(self) -> list[RunEvent]:
        return [event for event, _ in read_events(self.work / "events.jsonl")]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Data of the events of one type."""
        return [event.data for event in self.events if event.type == kind]

    @property
    def losses(self) -> dict[int, float]:
        """Step → training loss, exact."""
        return {m["step"]: m["loss"] for m in self.of("metrics") if "loss" in m}

    @property
    def result(self) -> dict[str, Any]:
        return self.of("result")[-1]

    @property
    def exit(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.work / "exit.json").read_text())
        return loaded

    @property
    def log(self) -> str:
        return (self.work / "output.log").read_text()


class Zygote:
    """Starts the forking process and talks to it; every wait has a deadline."""

    def __init__(self, run_seconds: float = _RUN_SECONDS) -> None:
        self._run_seconds = run_seconds
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer_core.zygote"],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.greeting = self._read(_START_SECONDS)

    def run(self, launch: dict[str, Any], **options: Any) -> Outcome:
        """Run a launch in a fork; `options` are `signals`, `disk`, `memory`, `short`, `secrets`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"launch": launch, **options}) + "\n")
        self._process.stdin.flush()
        answer = self._read(self._run_seconds)
        return Outcome(answer["code"], Path(launch["paths"]["work"]), answer["told"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(timeout=10)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self._process.kill()
                raise TimeoutError(f"no answer in {seconds} s")
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def signal_at(
    kind: str, name: str, times: int = 1, who: str = "self", **data: Any
) -> dict[str, Any]:
    """Ask a run to send signal `name` when it emits an event like this.

    To itself; where it trains in several processes also to its `launcher` or its `peers`.
    """
    return {"signal": name, "times": times, "who": who, "at": {"type": kind, "data": data}}
