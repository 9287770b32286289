"""A8: after a kill at any step a run goes on as if nothing had happened, to the last digit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from trainer_core.publish.manifest import read_manifest, verify

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"adapter": LORA},
    "full_packed": {"packed": True},
    "lora_packed_accumulated": {
        "packed": True,
        "adapter": LORA,
        "training": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 1},
    },
    "accumulated": {"training": {"gradient_accumulation_steps": 4, "num_train_epochs": 6}},
    "sparse_logs": {"adapter": LORA, "training": {"logging_steps": 3}},
    "neftune_checkpointed": {
        "training": {"neftune_noise_alpha": 5.0, "gradient_checkpointing": True}
    },
}


def _weights(outcome: Outcome) -> list[str]:
    manifest = read_manifest(outcome.work / "model")
    return [f.sha256 for f in manifest.files if f.path.endswith(".safetensors")]


@pytest.mark.sampled
@pytest.mark.parametrize("name", VARIANTS)
def test_a8_kill_and_resume_is_exact(name: str, world: World, zygote: Zygote) -> None:
    """Killed with -9 in the middle of a later epoch; checkpoints are made every 4 steps."""
    variant = VARIANTS[name]
    every = variant.get("training", {}).get("logging_steps", 1)
    whole = zygote.run(world.launch(f"{name}-whole", **variant))
    assert whole.code == 0, whole.log
    last_step = max(whole.losses)
    step = last_step * 2 // 3
    step -= step % every
    assert 4 < step < last_step

    killed = zygote.run(
        world.launch(f"{name}-killed", **variant),
        signals=[signal_at("metrics", "SIGKILL", step=step)],
    )
    assert killed.code == -9
    assert not (killed.work / "exit.json").exists()
    assert killed.losses == {s: loss for s, loss in whole.losses.items() if s <= step}

    saved = (step - 1) // 4 * 4
    launch = world.launch(f"{name}-resumed", **variant)
    launch["paths"]["resume_from"] = str(killed.work / "checkpoints" / f"step-{saved:08d}")
    resumed = zygote.run(launch)

    assert resumed.code == 0, resumed.log
    assert resumed.of("resumed") == [{"step": saved}]
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > saved}
    assert _weights(resumed) == _weights(whole)
    assert _eval_losses(resumed)[-1] == _eval_losses(whole)[-1]


def _eval_losses(outcome: Outcome) -> list[float]:
    return [m["eval_loss"] for m in outcome.of("metrics") if "eval_loss" in m]


def test_a8_resume_at_the_end_of_an_epoch(world: World, zygote: Zygote) -> None:
    """A checkpoint of an epoch's last step (15 of 30) begins the next epoch, shuffled anew."""
    checkpoint = {"save_strategy": "epoch", "save_steps": "auto"}
    whole = zygote.run(world.launch("epoch-whole", adapter=LORA, checkpoint=checkpoint))
    killed = zygote.run(
        world.launch("epoch-killed", adapter=LORA, checkpoint=checkpoint),
        signals=[signal_at("metrics", "SIGKILL", step=20)],
    )
    assert [c["step"] for c in killed.of("checkpoint")] == [15]
    launch = world.launch("epoch-resumed", adapter=LORA, checkpoint=checkpoint)
    launch["paths"]["resume_from"] = str(killed.work / "checkpoints/step-00000015")
    resumed = zygote.run(launch)
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 15}
    assert _weights(resumed) == _weights(whole)


def test_a_run_goes_on_in_its_own_folder(world: World, zygote: Zygote) -> None:
    """Started again with the same folder it takes its newest whole checkpoint by itself."""
    whole = zygote.run(world.launch("again-whole"))
    launch = world.launch("again")
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=7)])
    half_written = killed.work / "checkpoints/step-00000006"
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    again = zygote.run(launch)
    assert again.of("resumed") == [{"step": 4}]
    assert again.losses == whole.losses
    assert [e.n for e in again.events] == list(range(1, len(again.events) + 1))
    assert _weights(again) == _weights(whole)


def test_what_a_spec_leaves_open_goes_on_as_it_began(world: World, zygote: Zygote) -> None:
    """A checkpoint of other defaults (an older version's, another machine's): batches of 4, where
    an open spec now has 8 and 2 of them a step. What is said otherwise is another training."""
    whole = zygote.run(world.launch("began-whole", training={"num_train_epochs": 1}))
    saved = str(whole.work / "checkpoints/step-00000012")
    launch = world.launch("began-open", training={"num_train_epochs": 1})
    launch["paths"]["resume_from"] = saved
    del launch["spec"]["training"]["per_device_train_batch_size"]
    del launch["spec"]["training"]["gradient_accumulation_steps"]
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 12}
    assert _weights(resumed) == _weights(whole)
    said = {"num_train_epochs": 1, "per_device_train_batch_size": 8}
    other = world.launch("began-other", training=said)
    other["paths"]["resume_from"] = saved
    assert "its spec is another one" in zygote.run(other).exit["message"]


def test_checkpoints_are_whole_and_two_are_kept(world: World, zygote: Zygote) -> None:
    """30 steps, saved every 4 and at the end: the newest two of 4, 8, …, 28, 30 are left."""
    done = zygote.run(world.launch("kept"))
    assert [c["step"] for c in done.of("checkpoint")] == [4, 8, 12, 16, 20, 24, 28, 30]
    folders = sorted((done.work / "checkpoints").iterdir())
    assert [f.name for f in folders] == ["step-00000028", "step-00000030"]
    for folder, event in zip(folders, done.of("checkpoint")[-2:], strict=True):
        manifest = verify(folder)
        assert manifest.kind == "checkpoint"
        assert manifest.total_bytes == event["bytes"]
        names = {entry.path for entry in manifest.files}
        expected = {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
        assert expected | {"trainer_state.json"} <= names


def _resume_changed(world: World, zygote: Zygote, name: str, folder: Path, **spec: Any) -> Outcome:
    launch = world.launch(name, **spec)
    launch["paths"]["resume_from"] = str(folder)
    return zygote.run(launch)


@pytest.fixture(scope="module")
def checkpoint(world: World, zygote: Zygote) -> Path:
    """A whole checkpoint of step 4."""
    killed = zygote.run(world.launch("source"), signals=[signal_at("metrics", "SIGKILL", step=5)])
    return killed.work / "checkpoints/step-00000004"


def test_a8_changed_spec_is_refused(world: World, zygote: Zygote, checkpoint: Path) -> None:
    training = {"learning_rate": 0.02}
    refused = _resume_changed(world, zygote, "other-spec", checkpoint, training=training)
    assert refused.code == 64
    assert refused.exit["reason"] == "invalid_spec"
    assert "its spec is another one" in refused.result["message"]


def test_what_does_not_change_the_result_may_change(
    world: World, zygote: Zygote, checkpoint: Path
) -> None:
    resumed = _resume_changed(
        world,
        zygote,
        "other-logs",
        checkpoint,
        training={"logging_steps": 5},
        evaluation={"strategy": "no"},
        checkpoint={"save_steps": 10},
        publish={"name": "other"},
    )
    assert resumed.code == 0, resumed.log
    assert _weights(resumed) == _weights(zygote.run(world.launch("same-weights")))


def test_a8_changed_data_is_refused(world: World, zygote: Zygote, checkpoint: Path) -> None:
    launch = world.launch("other-data")
    launch["paths"] |= {"resume_from": str(checkpoint), "prepared": str(world.packed)}
    refused = zygote.run(launch)
    assert refused.code == 64
    assert "its data is another one" in refused.result["message"]


def test_a_damaged_checkpoint_is_refused(
    world: World, zygote: Zygote, checkpoint: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged)
    weights = damaged / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused = _resume_changed(world, zygote, "damaged", damaged)
    assert refused.code == 64
    assert "model.safetensors is damaged" in refused.result["message"]
    (damaged / "manifest.json").unlink()
    refused = _resume_changed(world, zygote, "unfinished", damaged)
    assert "never finished" in refused.result["message"]


def test_a_damaged_checkpoint_of_its_own_is_passed_over(world: World, zygote: Zygote) -> None:
    launch = world.launch("passed-over")
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=7)])
    newest = killed.work / "checkpoints/step-00000006"
    shutil.copytree(killed.work / "checkpoints/step-00000004", newest, dirs_exist_ok=True)
    (newest / "model.safetensors").write_bytes(b"damaged")
    again = zygote.run(launch)
    assert again.code == 0, again.log
    assert again.of("resumed") == [{"step": 4}]


def test_resume_never_starts_from_scratch(world: World, zygote: Zygote, checkpoint: Path) -> None:
    fresh = _resume_changed(world, zygote, "never", checkpoint, checkpoint={"resume": "never"})
    assert fresh.code == 0
    assert not fresh.of("resumed")
    assert min(fresh.losses) == 1
