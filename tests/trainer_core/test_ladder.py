"""Memory that runs out: the global batch stays, training goes on from the last step, and tells."""

from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from tests.trainer_core.small_tasks import Small
from tests.trainer_core.small_texts import pairs
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.ladder import Ladder
from trainer_core.spec import TrainSpec

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.0}
PLAIN = {"training": {"max_steps": 9}, "adapter": LORA}
"""Steps of 4 rows."""


def _told(run: Outcome) -> list[str]:
    return [w["message"] for w in run.of("warning") if w["code"] == "memory_ladder"]


def _steady(world: World) -> dict[str, Any]:
    """A model that draws nothing at random: smaller micro-batches then change rounding alone."""
    folder = world.folder / "steady"
    if not folder.exists():
        make_tiny_model(folder)
    return {"source": "folder", "name_or_path": str(folder)}


def _same(losses: dict[int, float], others: dict[int, float]) -> bool:
    """Sums of float32 in another order: 1e-5 of their size."""
    return losses.keys() == others.keys() and all(
        others[step] == pytest.approx(loss, rel=1e-5) for step, loss in losses.items()
    )


@pytest.mark.train
def test_a30_micro_batches_are_halved_and_the_global_batch_stays(
    world: World, zygote: Zygote
) -> None:
    """A device that fits one row: 4 → 2 → 1, and every step has the loss of the same 4 rows."""
    blocks = PLAIN | {"model": _steady(world)}
    whole = zygote.run(world.launch("ladder-whole", **blocks))
    run = zygote.run(world.launch("ladder-rows", **blocks), short={"rows": 1})
    assert run.code == 0, run.log
    assert _same(whole.losses, run.losses)
    first, second = _told(run)
    assert "memory ran out in the step after step 0 (CUDA out of memory." in first
    assert "micro-batches have 2 instead of 4 rows, and 2 instead of 1 make a step" in first
    assert "micro-batches have 1 instead of 2 rows, and 4 instead of 2 make a step" in second
    assert all("which still has 4 rows" in message for message in (first, second))
    assert run.result == {"status": "succeeded", "reason": None, "message": "", "step": 9}
    card = (run.work / "model/README.md").read_text()
    assert "| per_device_train_batch_size | 1 |" in card
    assert "| gradient_accumulation_steps | 4 |" in card


@pytest.mark.train
def test_a30_it_goes_on_from_the_last_step(world: World, zygote: Zygote) -> None:
    """Memory runs out in step 7: step 6, which no checkpoint of its own was due for, is saved, no
    step is made twice, and the weights are those of the undisturbed run."""
    import torch
    from safetensors.torch import load_file

    blocks = PLAIN | {"model": _steady(world)}
    whole = zygote.run(world.launch("ladder-later-whole", **blocks))
    run = zygote.run(world.launch("ladder-later", **blocks), short={"calls": [7]})
    assert run.code == 0, run.log
    assert _same(whole.losses, run.losses)
    assert [m["step"] for m in run.of("metrics") if "loss" in m] == list(range(1, 10))
    assert run.of("resumed") == [{"step": 6}]
    assert [c["step"] for c in run.of("checkpoint")] == [4, 6, 8, 9]
    assert len(_told(run)) == 1
    theirs, ours = (load_file(r.work / "model/adapter_model.safetensors") for r in (whole, run))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


@pytest.mark.train
def test_rungs_in_their_order_to_the_bottom(world: World, zygote: Zygote) -> None:
    """One row a batch already: activations are computed again, then the loss in smaller pieces; a
    third failure ends the run in words, with all that was finished saved."""
    training = {"max_steps": 9, "per_device_train_batch_size": 1}
    blocks = {"training": training, "adapter": LORA, "model": _steady(world)}
    whole = zygote.run(world.launch("rungs-whole", **blocks))
    run = zygote.run(world.launch("rungs", **blocks), short={"calls": [3, 6]})
    assert run.code == 0, run.log
    assert _same(whole.losses, run.losses)
    first, second = _told(run)
    assert "gradient_checkpointing" in first
    assert "the loss is computed for 128 tokens at a time" in second
    died = zygote.run(world.launch("rungs-end", **blocks), short={"calls": [3, 6, 9]})
    assert died.code == 71
    assert "nothing is left to give up" in died.result["message"]
    assert died.of("checkpoint")[-1]["step"] == died.result["step"] == max(died.losses)


@pytest.mark.train
def test_who_resumes_begins_where_the_ladder_was_left(world: World, zygote: Zygote) -> None:
    """Killed after it stepped down: the next attempt does not run into the same wall again."""
    blocks = PLAIN | {"model": _steady(world)}
    whole = zygote.run(world.launch("left-whole", **blocks))
    killed = zygote.run(
        world.launch("left", **blocks),
        short={"rows": 2},
        signals=[signal_at("metrics", "SIGKILL", step=7)],
    )
    assert killed.code == -9
    launch = world.launch("left-resumed", **blocks)
    launch["paths"]["resume_from"] = str(killed.work / "checkpoints/step-00000004")
    resumed = zygote.run(launch, short={"rows": 2})
    assert resumed.code == 0, resumed.log
    assert _told(resumed) == []
    assert _same({s: loss for s, loss in whole.losses.items() if s > 4}, resumed.losses)


@pytest.mark.train
def test_a14_evaluations_have_a_ladder_of_their_own(world: World, zygote: Zygote) -> None:
    """Their batches are halved, training's stay, and no evaluation is left out or made twice."""
    blocks = {
        "model": _steady(world),
        "evaluation": {"strategy": "steps", "steps": 3},
        "training": {"max_steps": 6, "per_device_eval_batch_size": 4},
    }
    whole = zygote.run(world.launch("eval-ladder-whole", **blocks))
    run = zygote.run(world.launch("eval-ladder", **blocks), short={"rows": 2, "evaluating": True})
    assert run.code == 0, run.log
    [message] = _told(run)
    assert "in the evaluation after step 3" in message
    assert "evaluations take batches of 2 instead of 4" in message
    measured = [
        {m["step"]: m["eval_loss"] for m in r.of("metrics") if "eval_loss" in m}
        for r in (whole, run)
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
    assert list(measured[1]) == [3, 6]
    assert run.losses == whole.losses


@pytest.mark.train
def test_a_real_limit(world: World, zygote: Zygote) -> None:
    """The run may map 0.8 GB more. The logits of 60 rows (about 640 trained tokens × 60,000 words ×
    4 bytes = 154 MB) are needed several times over; a model of 62 MB is loaded again beside them.
    """
    wide = world.folder / "wide-frozen"
    make_tiny_model(wide, hidden_size=128, vocab_size=60_000)
    launch = world.launch(
        "real-ladder",
        model={"source": "folder", "name_or_path": str(wide)},
        adapter=LORA,
        training={"per_device_train_batch_size": 60, "max_steps": 2},
        evaluation={"strategy": "no"},
    )
    run = zygote.run(launch, memory=800_000_000)
    assert run.code == 0, run.log
    assert _told(run)
    assert all("which still has 60 rows" in message for message in _told(run))
    assert sorted(run.losses) == [1, 2]


@pytest.mark.train
def test_losses_that_compare_rows_are_not_split(small: Small, zygote: Zygote) -> None:
    """In-batch negatives need their whole batch: the first rung is the second one."""
    launch = small.launch(
        "ladder-pairs", {"type": "sentence_transformer"}, pairs(24), training={"max_steps": 4}
    )
    run = zygote.run(launch, short={"calls": [2]})
    assert run.code == 0, run.log
    [message] = _told(run)
    assert "gradient_checkpointing" in message


@pytest.mark.train
def test_an_optimizer_that_does_not_fit(world: World, zygote: Zygote) -> None:
    """Smaller batches would not help: said at once, and nothing half-updated is saved."""
    died = zygote.run(world.launch("no-states", **PLAIN), short={"optimizer": True})
    assert died.code == 71
    assert "in the optimizer's step after step 0" in died.result["message"]
    assert "training.optim 'adamw_8bit'" in died.result["message"]
    assert died.of("checkpoint") == []


def _ladder(task: dict[str, Any], **training: Any) -> Ladder:
    document = {
        "task": task,
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "rows.jsonl"}]},
        "training": training,
    }
    return Ladder(TrainSpec.model_validate(document))


def test_odd_batches_are_split_by_their_smallest_part() -> None:
    """15 → 5 → 1, and a step has 30 rows throughout."""
    ladder = _ladder({"type": "sft"}, per_device_train_batch_size=15, gradient_accumulation_steps=2)
    steps = []
    while (ladder.spec.training.per_device_train_batch_size or 1) > 1:
        assert ladder.lower(pieces=False)
        now = ladder.spec.training
        steps.append((now.per_device_train_batch_size, now.gradient_accumulation_steps))
    assert steps == [(5, 6), (1, 30)]
    assert ladder.lower(pieces=False)
    assert ladder.spec.training.gradient_checkpointing
    assert ladder.lower(pieces=False) is None


def test_groups_stay_whole_and_labels_have_no_pieces() -> None:
    rewards = [{"type": "length", "max": 4}]
    grpo = _ladder({"type": "grpo", "rewards": rewards}, per_device_train_batch_size=16)
    assert "gradient_checkpointing" in str(grpo.lower(pieces=True))
    assert grpo.lower(pieces=True) is None
    labels = _ladder({"type": "text_classification"}, per_device_train_batch_size=1)
    assert "gradient_checkpointing" in str(labels.lower(pieces=True))
    assert labels.lower(pieces=True) is None
