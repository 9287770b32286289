"""Recipes: each is a spec that works on the hardware that it names; those for a CPU run here."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from polar.config import Places, compose_spec
from tests.trainer_core.runs import REPOSITORY, Zygote
from tests.trainer_core.small_tasks import Small, opinions
from tests.trainer_core.small_texts import pairs
from trainer_core.capabilities import check
from trainer_core.hardware import Hardware
from trainer_core.launch import standalone
from trainer_core.resolve import resolve
from trainer_core.spec import TrainSpec

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


def _inquiries(path: Path) -> None:
    rows = [(row["text"], row["label"]) for row in opinions(80)]
    _write(path, ("문의", "분류"), rows)


def _clicks(path: Path) -> None:
    _write(path, ("query", "product"), [(r["anchor"], r["positive"]) for r in pairs(160)])


def _write(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "write"), [("korean-classifier", _inquiries), ("click-pairs", _clicks)]
)
def test_a_recipe_for_a_cpu_trains_on_a_csv_file(
    name: str, write: Callable[[Path], None], small: Small, zygote: Zygote
) -> None:
    """A step of it on rows of its own kind, with a tiny model in the place of its own."""
    rows = small.folder / f"{name}.csv"
    write(rows)
    recipe = next(str(path) for path in RECIPES if path.stem == name)
    changes = [f"data.train.0.path='{rows}'", "training.max_steps=1"]
    model = [f"model.name_or_path='{small.bert}'", "model.source=folder"]
    document = compose_spec([recipe, *changes, *model], Places()).document
    spec = TrainSpec.model_validate({n: v for n, v in document.items() if n != "name"})
    launch = standalone(spec, name, small.folder / f"recipe-{name}")
    run = zygote.run(launch.model_dump(mode="json", exclude_unset=True) | {"threads": 1})
    assert run.code == 0, run.log
    assert run.losses.keys() == {1}
