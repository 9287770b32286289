"""Where a model comes from: an id of the hub, or a folder that the run may read."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec, ModelUnavailable
from trainer_core.hub_client import be_patient
from trainer_core.launch import secret
from trainer_core.moved import present_place
from trainer_core.spec import Launch, ModelRef, Paths

FIELD = "model.name_or_path"
ADAPTER_CONFIG = "adapter_config.json"
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class ModelSource:
    """What `from_pretrained` is given; `reference` is what people call the model."""

    path: str
    reference: str
    options: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    """Folders between the model's root and its files (`model.subfolder`)."""

    @property
    def is_folder(self) -> bool:
        """Whether the model lies on this machine, outside of the hub's cache."""
        return Path(self.path).is_dir()


def locate(model: ModelRef, paths: Paths, secrets: Mapping[str, str]) -> ModelSource:
    """Find the model of a spec. Raises ModelUnavailable or InvalidSpec, naming the way out."""
    if paths.model is not None:
        return _local(Path(paths.model), model)
    if model.source == "folder":
        return _local(allowed_folder(model.name_or_path, paths), model)
    if model.source != "hub":
        raise InvalidSpec(
            f"a model of source '{model.source}' must be fetched first: give its folder in"
            " paths.model, or use source 'folder' or 'hub'",
            "model.source",
        )
    return _hub(model, secrets)


def allowed_folder(name: str, paths: Paths) -> Path:
    """Where a model's folder lies now; raises InvalidSpec outside of the allowed ones."""
    folders = paths.model_folders
    path = Path(os.path.realpath(present_place(name, paths.moved)))
    if folders is not None and not any(
        path.is_relative_to(os.path.realpath(folder)) for folder in folders
    ):
        raise InvalidSpec(
            f"'{name}' is not below an allowed model folder; allowed: {', '.join(folders) or '-'}",
            FIELD,
        )
    return path


def adapter_base(folder: Path) -> tuple[str, str | None] | None:
    """(base model, revision) of a published adapter; None for a folder that is no adapter."""
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text())
        base = config["base_model_name_or_path"]
        revision = config.get("revision")
    except (ValueError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"{path} is not an adapter's configuration", FIELD) from error
    if not base or not isinstance(base, str):
        raise ModelUnavailable(
            f"the adapter in {folder} does not say which model it belongs to: set"
            f" base_model_name_or_path in its {ADAPTER_CONFIG}",
            FIELD,
        )
    return base, revision if isinstance(revision, str) else None


def local_parameters(launch: Launch) -> int | None:
    """Parameters of a model that lies in a folder, from its weights' headers; None if unknown.

    Of a published adapter those of its base, where that lies in a folder too.
    """
    model, moved = launch.spec.model, launch.paths.moved
    name = launch.paths.model or (model.name_or_path if model.source == "folder" else None)
    if name is None:
        return None
    folder = Path(present_place(name, moved)) / (model.subfolder or "")
    try:
        if (base := adapter_base(folder)) is not None:
            folder = Path(present_place(base[0], moved))
        counts = [_tensors_in(path) for path in folder.glob("*.safetensors")]
    except (ModelUnavailable, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # loading it will say what is wrong
    return sum(counts) or None


def _tensors_in(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError("not a safetensors file")
        header: dict[str, Any] = json.loads(file.read(length))
    return sum(math.prod(t["shape"]) for name, t in header.items() if name != "__metadata__")


def _local(path: Path, model: ModelRef) -> ModelSource:
    folder = path / (model.subfolder or "")
    if not folder.resolve().is_relative_to(path.resolve()):
        raise InvalidSpec("model.subfolder climbs out of the model's folder", "model.subfolder")
    if not folder.is_dir():
        raise ModelUnavailable(f"there is no folder {folder}", FIELD)
    return ModelSource(str(folder), model.name_or_path, depth=_depth(model))


def _depth(model: ModelRef) -> int:
    return len(Path(model.subfolder or "").parts)


def _hub(model: ModelRef, secrets: Mapping[str, str]) -> ModelSource:
    be_patient()
    options: dict[str, Any] = {}
    if model.revision:
        options["revision"] = model.revision
    if model.subfolder:
        options["subfolder"] = model.subfolder
    if model.token:
        options["token"] = secret(dict(secrets), model.token.secret, "model.token")
    if Path(model.name_or_path).is_absolute() or ".." in model.name_or_path:
        raise InvalidSpec(
            f"'{model.name_or_path}' is a path, but model.source is 'hub': use source 'folder'",
            FIELD,
        )
    if _exists(model.name_or_path):
        # Transformers would load the local folder, which nobody has allowed.
        raise InvalidSpec(
            f"'{model.name_or_path}' is also a local path, but model.source is 'hub': use source"
            " 'folder' for a local model, or the full repository id of the hub",
            FIELD,
        )
    return ModelSource(model.name_or_path, model.name_or_path, options, _depth(model))


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False
