"""Models without dropout, for runs whose random numbers differ."""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.small_tasks import Small


@pytest.fixture(scope="session")
def calm(tiny_models: Small, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The tiny models with every dropout of their configurations switched off."""
    folder = tmp_path_factory.mktemp("고요한 과제")
    names = [field.name for field in fields(tiny_models) if field.name != "folder"]
    models = {name: _calm(getattr(tiny_models, name), folder / name) for name in names}
    return replace(tiny_models, folder=folder, **models)


def _calm(model: Path, copy: Path) -> Path:
    shutil.copytree(model, copy)
    config = copy / "config.json"
    config.write_text(json.dumps(_without_dropout(json.loads(config.read_text()))))
    return copy


def _without_dropout(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        name: 0.0 if "dropout" in name and each is not None else _without_dropout(each)
        for name, each in value.items()
    }
