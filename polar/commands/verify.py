"""`polar verify`: are the numbers of a spec right on this machine? The trainer itself says so."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from polar.commands.screen import fail
from trainer_core.spec import TrainSpec

_OF_THE_SERVICE = ("name", "labels", "priority", "compute", "retry", "plan_id")
"""Fields of a job that say nothing about training."""


def verify(
    spec: Annotated[Path, typer.Argument(help="A spec or a job's as a JSON file.", exists=True)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
) -> None:
    """Train a sample of a spec's data in pairs of ways that must agree; exit code 1: not all do."""
    try:
        body = json.loads(spec.read_text(encoding="utf-8"))
    except ValueError as error:
        raise fail(f"{spec} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise fail(f"{spec} must hold a JSON object, with {', '.join(TrainSpec.model_fields)}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / spec.name
        kept = {name: value for name, value in body.items() if name not in _OF_THE_SERVICE}
        file.write_text(json.dumps(kept), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "trainer_core", "verify", str(file)]
        done = subprocess.run([*command, *(["--json"] if as_json else [])], check=False)
    raise SystemExit(done.returncode)
