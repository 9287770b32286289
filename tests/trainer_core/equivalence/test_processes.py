"""DDP: two processes train as one that accumulates twice as many batches."""

from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import PLAIN, TRAINED, VARIANTS, calmed, evaluations
from tests.trainer_core.runs import Zygote
from tests.trainer_core.small_tasks import Small
from trainer_core.task import TASKS

pytestmark = pytest.mark.train

TOLERANCE = 1e-5
"""Sums of two halves are rounded elsewhere than one sum: about 1e-7 of losses below 7 in fp32, and
AdamW carries it on (4e-7 after 16 steps was seen)."""
SPREAD = [name for name in VARIANTS if TASKS[VARIANTS[name][0]["type"]].FACTS.ddp is None]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in PLAIN else pytest.mark.slow) for name in SPREAD],
)
def test_two_processes_are_one(name: str, calm: Small, zygote: Zygote) -> None:
    """Losses of steps and of evaluations; batches and validation rows that do not part evenly."""
    task, rows, changes = calmed(name)
    given: dict[str, Any] = changes.get("training", {})
    accumulated = given.get("gradient_accumulation_steps", 1)
    runs = []
    for strategy, factor in (("none", 2), ("ddp", 1)):
        training = given | {
            "gradient_accumulation_steps": factor * accumulated,
            "num_train_epochs": 2,
        }
        blocks = changes | {"training": training, "distributed": {"strategy": strategy}}
        launch = calm.launch(f"{name}-{strategy}", task, rows[:37], rows[:7], **blocks)
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    one, two = runs
    assert two.losses.keys() == one.losses.keys()
    assert two.losses == pytest.approx(one.losses, abs=TOLERANCE)
    for ours, theirs in zip(evaluations(two), evaluations(one), strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=TOLERANCE)


def test_every_task_is_here_or_refused() -> None:
    """A task that cannot be spread says why, in the table of what can be combined."""
    spread = {VARIANTS[name][0]["type"] for name in SPREAD}
    refused = {task for task, module in TASKS.items() if module.FACTS.ddp}
    assert spread | refused >= TRAINED
