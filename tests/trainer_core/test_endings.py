"""Every way to end: signals in each phase, divergence, memory, disk, wrong models."""

import json
import math
import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from tests.trainer_core.tiny import make_tiny_model

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}


def _nothing_half_written(outcome: Outcome) -> bool:
    names = {path.name for path in outcome.work.rglob("*")}
    return not {".writing", ".model.writing", "model"} & names


def _resumed(zygote: Zygote, world: World, name: str, stopped: Outcome, **spec: Any) -> Outcome:
    [*_, newest] = sorted((stopped.work / "checkpoints").iterdir())
    launch = world.launch(name, **spec)
    launch["paths"]["resume_from"] = str(newest)
    return zygote.run(launch)


def test_sigterm_in_training_saves_and_goes_on_exactly(world: World, zygote: Zygote) -> None:
    whole = zygote.run(world.launch("term-whole", adapter=LORA))
    stopped = zygote.run(
        world.launch("term", adapter=LORA), signals=[signal_at("metrics", "SIGTERM", step=6)]
    )
    assert stopped.code == 75
    assert stopped.exit == {
        "code": 75,
        "reason": "interrupted",
        "message": stopped.result["message"],
        "retryable": True,
    }
    assert stopped.result["status"] == "interrupted"
    # The signal came while step 6 was reported: step 7 is finished and saved.
    assert stopped.result["step"] == 7
    assert stopped.of("checkpoint")[-1]["step"] == 7
    assert _nothing_half_written(stopped)
    resumed = _resumed(zygote, world, "term-resumed", stopped, adapter=LORA)
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 7}


def test_sigterm_in_loading_ends_without_a_checkpoint(world: World, zygote: Zygote) -> None:
    stopped = zygote.run(
        world.launch("term-loading"), signals=[signal_at("phase", "SIGTERM", phase="loading")]
    )
    assert stopped.code == 75
    assert [e.type for e in stopped.events] == ["phase", "result"]
    assert stopped.result["step"] == 0
    assert _nothing_half_written(stopped)


def test_sigterm_in_evaluating_is_evaluated_later(world: World, zygote: Zygote) -> None:
    """Stopped in the evaluation of step 15: saved at 15, and evaluated there after the resume."""
    whole = zygote.run(world.launch("eval-whole"))
    stopped = zygote.run(
        world.launch("eval-term"),
        signals=[signal_at("phase", "SIGTERM", phase="evaluating")],
    )
    assert stopped.code == 75
    assert stopped.of("checkpoint")[-1]["step"] == 15
    assert not any("eval_loss" in m for m in stopped.of("metrics"))
    resumed = _resumed(zygote, world, "eval-resumed", stopped)
    evaluations = [
        {m["step"]: m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m}
        for run in (whole, resumed)
    ]
    assert evaluations[0] == evaluations[1]
    assert list(evaluations[0]) == [15, 30]


def test_sigterm_at_the_last_step_publishes_after_the_resume(world: World, zygote: Zygote) -> None:
    whole = zygote.run(world.launch("last-whole"))
    stopped = zygote.run(
        world.launch("last-term"), signals=[signal_at("metrics", "SIGTERM", step=30)]
    )
    assert stopped.code == 75
    assert stopped.of("checkpoint")[-1]["step"] == 30
    resumed = _resumed(zygote, world, "last-resumed", stopped)
    assert resumed.code == 0, resumed.log
    assert resumed.losses == {}
    weights = "model/model.safetensors"
    assert (resumed.work / weights).read_bytes() == (whole.work / weights).read_bytes()


def test_sigterm_in_publishing_leaves_no_model(world: World, zygote: Zygote) -> None:
    stopped = zygote.run(
        world.launch("term-publishing"),
        signals=[signal_at("phase", "SIGTERM", phase="publishing")],
    )
    assert stopped.code == 75
    assert stopped.of("checkpoint")[-1]["step"] == 30
    assert _nothing_half_written(stopped)
    assert not stopped.of("artifact")


def test_a_second_sigterm_ends_at_once(world: World, zygote: Zygote) -> None:
    stopped = zygote.run(
        world.launch("term-twice"), signals=[signal_at("metrics", "SIGTERM", times=2, step=6)]
    )
    assert stopped.code == 143
    assert not stopped.of("result")
    assert [c["step"] for c in stopped.of("checkpoint")] == [4]


def test_a15_diverged_stops_and_reports_no_zero(world: World, zygote: Zygote) -> None:
    """Infinite weights make the first loss NaN, which is never logged as a number."""
    import torch
    from safetensors.torch import load_file, save_file

    broken = world.folder / "broken-model"
    shutil.copytree(world.model, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], math.inf)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    model = {"source": "folder", "name_or_path": str(broken)}
    diverged = zygote.run(world.launch("diverged", model=model))
    assert diverged.code == 72
    assert diverged.exit["reason"] == "diverged"
    assert "the loss is nan at step 1" in diverged.result["message"]
    assert "model.name_or_path" in diverged.result["message"]
    assert diverged.losses == {}
    assert _nothing_half_written(diverged)


def test_out_of_memory(world: World, zygote: Zygote) -> None:
    """The run may map 400 MB more; one batch of 60 rows × 2000 wide rows wants far more."""
    wide = make_tiny_model(world.folder / "wide", hidden_size=512, vocab_size=60_000)
    model = {"source": "folder", "name_or_path": str(wide)}
    training = {"per_device_train_batch_size": 60, "optim": "sgd"}
    died = zygote.run(world.launch("oom", model=model, training=training), memory=400_000_000)
    assert died.code == 71, died.log
    assert died.exit["reason"] == "out_of_memory"
    assert "per_device_train_batch_size" in died.result["message"]


def _can_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except OSError:
        return False


small_disk = pytest.mark.skipif(not _can_mount(), reason="user name spaces are refused here")


@small_disk
def test_a37_disk_full_names_needed_and_free_bytes(world: World, zygote: Zygote) -> None:
    """A checkpoint of the model (48,000 fp32 parameters, two AdamW states) has about 600 kB."""
    full = zygote.run(world.launch("disk"), disk=400_000)
    ending = json.loads(full.told["exit"])
    assert ending["code"] == full.code == 73
    assert ending["reason"] == "disk_full"
    needed, free = map(int, re.findall(r"(\d+) bytes", ending["message"]))
    assert 3 * 193_000 < needed < 1_000_000
    assert 0 < free < 400_000
    assert "checkpoints/step-00000004" not in full.told["files"]


@small_disk
def test_a37_disk_filled_by_others_leaves_the_old_checkpoint(world: World, zygote: Zygote) -> None:
    """There is room for one checkpoint of 600 kB beside another, then no more."""
    full = zygote.run(world.launch("disk-later"), disk=1_600_000)
    ending = json.loads(full.told["exit"])
    assert ending["code"] == 73
    assert "the checkpoint of step" in ending["message"]
    whole = [f for f in full.told["files"] if f.endswith("/manifest.json")]
    assert whole
    assert not any(".writing" in name for name in full.told["files"])
