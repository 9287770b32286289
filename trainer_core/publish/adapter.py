"""An adapter's folder, made so that PEFT alone loads it beside the unchanged base."""

import copy
import json
from pathlib import Path
from typing import Any

from trainer_core.context import Loaded

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
# Part of a parameter's name → its value before training, by PEFT's kind of adapter.
_UNTRAINED = {
    "LORA": ("lora_B", 0.0),
    "ADALORA": ("lora_E", 0.0),
    "VERA": ("vera_lambda_b", 0.0),
    "IA3": ("ia3_l", 1.0),
}


def finish_adapter(folder: Path, loaded: Loaded) -> None:
    """Name the base, and forget how the adapter began: loading must not decompose anything."""
    config = json.loads((folder / CONFIG).read_text())
    config["base_model_name_or_path"] = loaded.reference
    config["revision"] = loaded.facts.get("revision")
    if loaded.initial is not None:
        _detach(folder / WEIGHTS, loaded, config)
    if "init_lora_weights" in config:
        config["init_lora_weights"] = True
        config |= {name: None for name in ("eva_config", "corda_config") if name in config}
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))


def save_model_config(model: Any, folder: Path) -> None:
    """The base's configuration beside an adapter, for a label map; not how the base was held."""
    config = copy.deepcopy(model.get_base_model().config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)


def is_untrained(tensors: dict[str, Any], kind: str) -> bool | None:
    """Whether an adapter's tensors are what they began as; None where that cannot be told.

    `kind` is PEFT's name of the adapter's type.
    """
    if kind not in _UNTRAINED:
        return None
    part, began = _UNTRAINED[kind]
    found = [tensor for name, tensor in tensors.items() if part in name]
    return bool(found) and all(bool((tensor == began).all()) for tensor in found)


def _detach(path: Path, loaded: Loaded, config: dict[str, Any]) -> None:
    """From a beginning that changed the base to a plain LoRA for the unchanged one."""
    from safetensors.torch import load_file, save_file

    if loaded.initial is None:
        return
    tensors = loaded.initial.as_plain_lora(load_file(path), config)
    save_file(tensors, path, metadata={"format": "pt"})
