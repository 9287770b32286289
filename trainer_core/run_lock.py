"""`run_lock.json`: everything that a run depended on, so that it can be repeated and explained."""

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from trainer_core.spec import TrainSpec

PACKAGES = (
    "polar-trainer",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "bitsandbytes",
    "torch-optimi",
    "datasets",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "pyarrow",
    "pydantic",
)


@cache
def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what a run computes; read once per process."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware_facts(*, use_cpu: bool) -> dict[str, Any]:
    """The machine as the run saw it."""
    import torch

    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
    }
    if not use_cpu:
        facts["device"] = torch.cuda.get_device_name(0)
        facts["device_memory_mb"] = torch.cuda.get_device_properties(0).total_memory // 2**20
    return facts


def run_lock(
    spec: TrainSpec, hashes: Mapping[str, str | None], base: dict[str, Any], *, use_cpu: bool
) -> dict[str, Any]:
    """The run lock; `hashes` are those of spec, data and template, `base` is about the model."""
    import torch

    training = spec.training
    data_seed = training.seed if training.data_seed is None else training.data_seed
    return {
        "version": 1,
        "spec": spec.model_dump(mode="json"),
        "packages": package_versions(),
        "python": sys.version.split()[0],
        "torch_build": {"version": torch.__version__, "cuda": torch.version.cuda},
        "hardware": hardware_facts(use_cpu=use_cpu),
        "hashes": hashes,
        "base_model": base,
        "seeds": {"seed": training.seed, "data_seed": data_seed},
    }
