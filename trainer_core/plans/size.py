"""The size of a spec's model, without loading it: its configuration tells width and layers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer_core.loading import files_of
from trainer_core.memory import Shape
from trainer_core.model_source import ModelSource, adapter_base
from trainer_core.moved import present_place
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_WRITES_TOKENS = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForImageTextToText")


def shape_of(
    spec: TrainSpec, source: ModelSource, parameters: int | None, moved: Mapping[str, str]
) -> Shape | None:
    """The model's shape, or None where neither its configuration nor its name tells its size.

    `parameters` as `resolve` gets them; `moved` as in `Paths`. A model that begins at random has
    those of its configuration; one that writes no tokens has no logits of a whole vocabulary.
    """
    kind = task_of(spec).FACTS.model
    own = kind.from_config(spec)
    folder = files_of(source) / (spec.model.subfolder or "")
    config = {**_config(folder, moved), **(own or {})}
    shape = Shape.read(config, None if own is not None else parameters)
    if shape is None:
        shape = None if parameters is None else Shape.of(parameters)
    if shape is None or kind.auto_class in _WRITES_TOKENS:
        return shape
    return Shape(shape.parameters, shape.width, shape.layers, 0)


def _config(folder: Path, moved: Mapping[str, str]) -> dict[str, Any]:
    """Of a model, or of the local base of an adapter; empty where there is none to read."""
    base = adapter_base(folder)
    if base is not None:
        folder = Path(present_place(base[0], moved))
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}  # loading the model will say what is wrong
    return config if isinstance(config, dict) else {}
