"""Activation checkpointing: what is recomputed in the backward pass changes no loss."""

import pytest

from tests.trainer_core.equivalence.variants import PLAIN, TRAINED, VARIANTS
from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.small_tasks import Small
from trainer_core.arguments import loop_arguments
from trainer_core.context import TrainContext
from trainer_core.spec import TrainSpec

pytestmark = pytest.mark.train

TOLERANCE = 1e-6
"""The same operations are repeated on the same numbers, the random state of dropout included."""


@pytest.mark.parametrize("name", PLAIN)
def test_checkpointing_on_is_off(name: str, small: Small, zygote: Zygote) -> None:
    """Every task type, with dropout."""
    task, rows, changes = VARIANTS[name]
    runs = []
    for state in (False, True):
        training = changes.get("training", {}) | {"gradient_checkpointing": state, "max_steps": 5}
        launch = small.launch(
            f"{name}-checkpointing-{state}", task, rows, **changes | {"training": training}
        )
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    assert runs[1].losses == pytest.approx(runs[0].losses, abs=TOLERANCE)


def test_every_task_is_here() -> None:
    assert {VARIANTS[name][0]["type"] for name in PLAIN} == TRAINED


def test_a20_checkpointing_is_not_reentrant_and_changes_nothing(
    world: World, zygote: Zygote
) -> None:
    """LoRA through recomputed activations: the same losses, dropout included."""
    runs = []
    for name, on in (("gc-off", False), ("gc-on", True)):
        training = {"gradient_checkpointing": on, "max_steps": 8}
        adapter = {"type": "lora", "r": 4, "lora_dropout": 0.1}
        runs.append(zygote.run(world.launch(name, adapter=adapter, training=training)))
        assert runs[-1].code == 0, runs[-1].log
    assert runs[1].losses == pytest.approx(runs[0].losses, abs=TOLERANCE)
    spec = TrainSpec.model_validate(world.launch("unused")["spec"])
    context = TrainContext(spec, None, None, True, None, _Checkpoints())  # type: ignore[arg-type]
    assert loop_arguments(context)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


class _Checkpoints:
    staging = "unused"
