"""The command: runs every check, and says what it measured as a table or as JSON."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from trainer_core.capabilities import check
from trainer_core.errors import InvalidSpec
from trainer_core.launch import read_launch, read_secrets
from trainer_core.machine import detect_hardware, with_own_devices
from trainer_core.task import task_of
from trainer_core.verify.checks import Result, verify
from trainer_core.verify.trials import Trials, sampled
from trainer_core.warm import preload

_WORDS = {"pass": "pass", "fail": "FAIL", "not_applicable": "—"}


def verify_command(path: Path, *, as_json: bool) -> int:
    """0 when nothing fails, 1 when something does; raises InvalidSpec for a spec that cannot run.

    Every run is a fork of this process, which imports the training stack and computes nothing.
    """
    given = with_own_devices(read_launch(path))
    if problems := check(given.spec, None if given.devices else detect_hardware(given)):
        raise InvalidSpec("; ".join(problem.message for problem in problems))
    if not task_of(given.spec).FACTS.trains:
        raise InvalidSpec("task.type is one that trains nothing: there is nothing to prove")
    secrets = read_secrets()
    preload()
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        results = list(verify(Trials(sampled(given), secrets, Path(folder))))
    failed = any(result.status == "fail" for result in results)
    if as_json:
        document = {"passed": not failed, "checks": [asdict(result) for result in results]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(table(results))
    return int(failed)


def table(results: Sequence[Result]) -> str:
    """One line for each check."""
    rows = [("check", "measured", "tolerance", "result", "why")]
    rows += [
        (
            result.name,
            _number(result.measured),
            _number(result.tolerance),
            _WORDS[result.status],
            result.reason or "",
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        "  ".join([*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
