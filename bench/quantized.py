"""Bytes of a base's 4-bit layers, scales included, against those of the same layers in bf16.

python -m bench.quantized
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.task_cases import LORA
from bench.turns import in_fork, verdict
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.backends import hf
from trainer_core.hardware import Hardware
from trainer_core.resolve import resolve
from trainer_core.spec import Paths, TrainSpec
from trainer_core.warm import preload

LIMIT = 0.30
_BF16 = 2
KINDS = [(kind, double) for kind in ("nf4", "fp4") for double in (True, False)]


def spec(model: Path, kind: str, *, double: bool) -> TrainSpec:
    """LoRA on a 4-bit base."""
    return TrainSpec.model_validate(
        {
            "task": {"type": "sft"},
            "model": {"source": "folder", "name_or_path": str(model)},
            "data": {"train": [{"source": "folder", "path": "unused"}]},
            "adapter": LORA,
            "quantization": {"bits": 4, "quant_type": kind, "double_quant": double},
        }
    )


def share(wanted: TrainSpec, folder: Path) -> float:
    """Bytes of all 4-bit layers as our backend loads them, over two for each of their weights."""
    resolved = resolve(wanted, Hardware()).spec
    loaded = hf.load(resolved, Paths(work=str(folder)), {})
    layers = [m for m in loaded.model.modules() if hasattr(m, "quant_state")]
    assert len(layers) == 7 * _LAYERS, "every linear layer of every block is in 4 bits"
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    return sum(_bytes(layer) for layer in layers) / (_BF16 * weights)


_LAYERS = 2


def _bytes(layer: Any) -> int:
    scales = [v for v in layer.weight.quant_state.as_dict().values() if hasattr(v, "nbytes")]
    return int(layer.weight.data.nbytes + sum(each.nbytes for each in scales))


def make_model(path: Path) -> bool:
    """Blocks as wide as SmolLM2's."""
    make_tiny_model(path, hidden_size=576, layers=_LAYERS, intermediate_size=1536)
    return True


def main() -> int:
    """Measure and print; 1 when the limit is broken."""
    preload()
    good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, log = folder / "model", folder / "log"
        in_fork(lambda: make_model(model), log)
        for kind, double in KINDS:
            wanted = spec(model, kind, double=double)
            found = in_fork(lambda wanted=wanted: share(wanted, folder), log)
            scales = "quantized scales" if double else "scales in fp32"
            good &= verdict(f"{kind}, {scales}: bytes / bf16", [found], LIMIT, at_most=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
