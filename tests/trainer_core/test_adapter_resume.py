"""A8 for every kind of adapter, base and optimizer: killed and resumed to the last digit."""

from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from trainer_core.publish.manifest import read_manifest

pytestmark = pytest.mark.train

STEPS = {"max_steps": 14}
VARIANTS: dict[str, dict[str, Any]] = {
    "dora": {"adapter": {"type": "lora", "r": 4, "use_dora": True, "lora_dropout": 0.1}},
    "adalora": {
        "adapter": {"type": "adalora", "init_r": 4, "target_r": 2, "lora_dropout": 0.1},
        "training": {"gradient_accumulation_steps": 2},
    },
    "adalora_fixed_end": {
        "adapter": {
            "type": "adalora", "init_r": 4, "target_r": 1, "tinit": 2, "tfinal": 6, "delta_t": 2,
        },
    },
    "ia3": {"adapter": {"type": "ia3"}},
    "vera": {"adapter": {"type": "vera", "r": 16, "vera_dropout": 0.1}},
    "layernorm": {"adapter": {"type": "layernorm"}},
    "freeze": {"adapter": {"type": "freeze", "trainable_patterns": ["model.layers.1.*"]}},
    "pissa": {"adapter": {"type": "lora", "r": 4, "init_lora_weights": "pissa_niter_4"}},
    "qlora": {"adapter": {"type": "lora", "r": 4}, "quantization": {"bits": 4}},
    "8_bits": {"adapter": {"type": "lora", "r": 4}, "quantization": {"bits": 8}},
    "adamw_8bit": {"training": {"optim": "adamw_8bit"}},
    "paged_adamw_8bit": {"training": {"optim": "paged_adamw_8bit"}},
    "stable_adamw": {"training": {"optim": "stable_adamw"}},
}  # fmt: skip


def _weights(outcome: Outcome) -> list[str]:
    manifest = read_manifest(outcome.work / "model")
    return [f.sha256 for f in manifest.files if f.path.endswith(".safetensors")]


@pytest.mark.sampled
@pytest.mark.parametrize("name", VARIANTS)
def test_a8_kill_and_resume_is_exact(name: str, world: World, zygote: Zygote) -> None:
    """14 steps with a checkpoint every 4: killed at step 10, resumed from step 8."""
    changes = VARIANTS[name] | {"training": STEPS | VARIANTS[name].get("training", {})}
    whole = zygote.run(world.launch(f"{name}-whole", **changes))
    assert whole.code == 0, whole.log
    assert [module for module in whole.told["late"] if not module.endswith("_fast")] == []
    assert list(whole.losses) == list(range(1, 15))

    launch = world.launch(f"{name}-killed", **changes)
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=10)])
    assert killed.code == -9
    assert killed.losses == {s: loss for s, loss in whole.losses.items() if s <= 10}

    launch["attempt_id"] = f"{name}-resumed"
    launch["paths"] |= {
        "work": str(world.folder / f"{name}-resumed"),
        "resume_from": str(killed.work / "checkpoints/step-00000008"),
    }
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert resumed.of("resumed") == [{"step": 8}]
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 8}
    assert _weights(resumed) == _weights(whole)
