"""The sample's spec and its parts that need no training."""

import json
import subprocess
import sys
from pathlib import Path

from app.jobs.spec import JobSpec
from polar.commands.sample import EXAMPLES, filled_in
from tests.services import ROOT


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "polar.sample_model", str(tmp_path), str(tmp_path / "cache")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path} is there already\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_the_committed_spec_is_a_job_spec() -> None:
    raw = json.loads((EXAMPLES / "shop-sft.json").read_text(encoding="utf-8"))
    datasets = {"shop": "ds_1", "shop-validation": "ds_2"}
    spec = JobSpec.model_validate(filled_in(raw, Path("/data/models/m"), datasets))
    assert spec.model.name_or_path == "/data/models/m"
    assert spec.data.train[0].path == "ds_1"
    assert spec.task.max_length == 256
    assert spec.adapter is not None
