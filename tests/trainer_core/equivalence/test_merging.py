"""Merging: the merged model says what base and adapter say together, within the measured drift."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.test_adapters import KINDS, LORA, SHORT

pytestmark = pytest.mark.train

ROUNDING = 1e-6
"""The drift is measured on another input than the one compared here; both are fp32."""
KINDS_THAT_MERGE: dict[str, Any] = {"lora": LORA} | {
    name: KINDS[name] for name in ("dora", "adalora", "ia3", "vera", "layernorm", "head")
}


def _logits(model: Any) -> Any:
    import torch

    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(4, 36)[None] * 7 % 500).logits


@pytest.mark.parametrize("name", KINDS_THAT_MERGE)
def test_a21_merged_is_base_and_adapter(name: str, world: World, zygote: Zygote) -> None:
    """The same run twice, published apart and merged."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    folders: list[Path] = []
    for merge in ("never", "always"):
        launch = world.launch(
            f"equal-{name}-{merge}",
            adapter=KINDS_THAT_MERGE[name],
            training=SHORT,
            evaluation={"strategy": "no"},
            publish={"merge": merge},
        )
        run = zygote.run(launch)
        assert run.code == 0, run.log
        folders.append(run.work / "model")
    apart, merged = folders
    assert not (merged / "adapter_config.json").exists()
    drift = json.loads((merged / "run_lock.json").read_text())["merge"]["drift"]
    assert 0 <= drift <= 1e-3
    assert f"at most {drift:.3g} of the largest" in (merged / "README.md").read_text()
    together = _logits(AutoPeftModelForCausalLM.from_pretrained(apart))
    after = _logits(AutoModelForCausalLM.from_pretrained(merged))
    largest = together.abs().max().item()
    assert (after - together).abs().max().item() <= 2 * (drift + ROUNDING) * largest
