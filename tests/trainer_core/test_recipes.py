"""Recipes: each is a spec that works on the hardware that it names."""

from pathlib import Path

import pytest

from polar.config import Places, compose_spec
from tests.trainer_core.runs import REPOSITORY
from trainer_core.capabilities import check
from trainer_core.hardware import Hardware
from trainer_core.resolve import resolve

RECIPES = sorted((REPOSITORY / "examples/recipes").glob("*.yaml"))
MARK = "# hardware: "


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_works_on_the_hardware_that_it_names(path: Path) -> None:
    import yaml

    text = path.read_text(encoding="utf-8")
    assert "# Assumes: " in text
    named = next(line for line in text.splitlines() if line.startswith(MARK))
    hardware = Hardware.model_validate(yaml.safe_load(named.removeprefix(MARK)))
    spec = compose_spec([str(path)], Places()).spec.train_spec()
    assert check(spec, hardware) == []
    found = resolve(spec, hardware)
    assert found.warnings == []
    assert found.spec.training.learning_rate == spec.training.learning_rate
    gpus = compose_spec([str(path)], Places()).spec.compute.gpus
    assert gpus is None or gpus.count == hardware.gpus
