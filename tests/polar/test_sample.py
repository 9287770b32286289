"""The sample's spec and its parts that need no training."""

import json
from pathlib import Path

from app.jobs.spec import JobSpec
from polar.commands.sample import EXAMPLES, filled_in


def test_the_committed_spec_is_a_job_spec() -> None:
    raw = json.loads((EXAMPLES / "shop-sft.json").read_text(encoding="utf-8"))
    datasets = {"shop": "ds_1", "shop-validation": "ds_2"}
    spec = JobSpec.model_validate(filled_in(raw, Path("/data/models/m"), datasets))
    assert spec.model.name_or_path == "/data/models/m"
    assert spec.data.train[0].path == "ds_1"
    assert spec.task.max_length == 256
    assert spec.adapter is not None
