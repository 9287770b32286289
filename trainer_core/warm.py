"""Importing the training stack once, deeply, for processes that are forked from this one."""

import gc
import importlib
import os

from trainer_core.run_lock import package_versions

MODULES = (
    "torch",
    "numpy",
    "pyarrow",
    "safetensors.torch",
    "tokenizers",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
)


def preload() -> None:
    """Import everything that a run imports late; afterwards `os.fork` is ready for runs.

    One thread, no tensor arithmetic and no CUDA here: a child with threads of its own would hang
    after either. Modules imported before are taken out of the garbage collector's sight, so that
    children share their memory.
    """
    quiet_libraries()
    for name in MODULES:
        importlib.import_module(name)
    package_versions()
    gc.collect()
    gc.freeze()


def quiet_libraries() -> None:
    """Settings that the libraries read when they are imported; what is set already stays."""
    for name, value in {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    }.items():
        os.environ.setdefault(name, value)
