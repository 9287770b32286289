"""`polar verify`: are the numbers of a spec right on this machine? The trainer itself says so."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from polar.commands.composing import ConfigDir, ConfigName, Words, job_of
from polar.config.places import Places

_OF_THE_SERVICE = ("name", "labels", "priority", "compute", "retry", "plan_id")
"""Fields of a job that say nothing about training."""


def verify(
    words: Words = None,
    *,
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say it as JSON.")] = False,
) -> None:
    """Train a sample of a spec's data in pairs of ways that must agree; exit code 1: not all do."""
    body = job_of(words, Places(config_dir, config_name))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.json"
        kept = {name: value for name, value in body.items() if name not in _OF_THE_SERVICE}
        file.write_text(json.dumps(kept), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "trainer_core", "verify", str(file)]
        done = subprocess.run([*command, *(["--json"] if as_json else [])], check=False)
    raise SystemExit(done.returncode)
