"""Warm starts: one thread, nothing left to import, quick to the first step."""

import pytest

from tests.trainer_core.runs import World, Zygote

pytestmark = pytest.mark.train

VARIANTS = {
    "warm-lora": {"adapter": {"type": "lora"}},
    "warm-full": {},
    "warm-packed": {"packed": True},
    "warm-merged": {"adapter": {"type": "lora"}, "publish": {"merge": "always"}},
    "warm-adafactor": {"training": {"optim": "adafactor", "max_steps": 2}},
}


def test_the_parent_has_one_thread(zygote: Zygote) -> None:
    """A fork copies one thread only: with others their locks would stay locked for ever."""
    assert zygote.greeting["threads"] == 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_forked_run_imports_nothing(name: str, world: World, zygote: Zygote) -> None:
    run = zygote.run(world.launch(name, **VARIANTS[name]))
    assert run.code == 0, run.log
    assert run.told["late"] == []


def test_forks_of_one_parent_train_alike(world: World, zygote: Zygote) -> None:
    """Nothing that one run does reaches the next one; equal to the last digit."""
    runs = [zygote.run(world.launch(f"alike-{i}", adapter={"type": "lora"})) for i in range(3)]
    assert runs[0].losses == runs[1].losses == runs[2].losses
