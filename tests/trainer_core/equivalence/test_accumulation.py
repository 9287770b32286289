"""Accumulation: a step of eight batches of one row is a step of one batch of eight."""

from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import PLAIN, TRAINED, VARIANTS, calmed, evaluations
from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.small_tasks import Small
from tests.trainer_core.tiny import make_tiny_model

pytestmark = pytest.mark.train

TOLERANCE = 1e-4
"""Other shapes are multiplied by other kernels, which add up in another order: 1e-6 of a logit in
fp32, and AdamW makes 1e-5 of it where gradients are small."""
NOT_ACCUMULATED = {"grpo": "answers are drawn batch by batch, so other batches give other answers"}
OF_SINGLE_ROWS = {"sentence_transformer": "sentence_transformer_head"}
"""In-batch negatives compare the rows of a batch: a loss of single rows stands for this task."""
NAMES = [
    OF_SINGLE_ROWS.get(task, name)
    for name in PLAIN
    if (task := VARIANTS[name][0]["type"]) not in NOT_ACCUMULATED
]


@pytest.mark.parametrize("name", NAMES)
def test_eight_batches_of_one_are_one_of_eight(name: str, calm: Small, zygote: Zygote) -> None:
    """Rows of different length; the last step of the epoch has fewer."""
    task, rows, changes = calmed(name)
    given: dict[str, Any] = changes.get("training", {})
    runs = []
    for batch, accumulated in ((8, 1), (1, 8)):
        training = given | {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated,
            "num_train_epochs": 2,
        }
        launch = calm.launch(
            f"{name}-{batch}x{accumulated}",
            task,
            rows[:36],
            rows[:6],
            **changes | {"training": training},
        )
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    whole, parts = runs
    assert parts.losses.keys() == whole.losses.keys()
    assert parts.losses == pytest.approx(whole.losses, abs=TOLERANCE)
    measured = [[m["eval_loss"] for m in evaluations(run)] for run in runs]
    assert measured[1] == pytest.approx(measured[0], abs=TOLERANCE)


def test_every_task_is_here_or_has_a_reason() -> None:
    covered = {VARIANTS[name][0]["type"] for name in NAMES}
    assert covered | NOT_ACCUMULATED.keys() == TRAINED


def test_a6_accumulation_is_normalised_over_all_tokens(world: World, zygote: Zygote) -> None:
    """Rows of 8 to 24 tokens, four epochs: 32 steps of one batch of 8 and of eight batches of 1."""
    quiet = make_tiny_model(world.folder / "calm")  # without dropout
    losses = []
    for name, batch, accumulated in (("a6-bs8", 8, 1), ("a6-ga8", 1, 8)):
        training = {
            "per_device_train_batch_size": batch,
            "gradient_accumulation_steps": accumulated,
            "num_train_epochs": 4,
        }
        model = {"source": "folder", "name_or_path": str(quiet)}
        run = zygote.run(world.launch(name, model=model, training=training))
        assert run.code == 0, run.log
        losses.append(run.losses)
    assert losses[0].keys() == losses[1].keys() == set(range(1, 33))
    assert losses[1] == pytest.approx(losses[0], abs=TOLERANCE)
