"""An adapter that is switched off by flags alone gives what the library's own way gives."""

from typing import Any

import pytest

from tests.trainer_core.small_tasks import Small
from trainer_core.adapter_switch import switch_quickly

pytestmark = pytest.mark.train


def _adapted(small: Small, kind: str) -> Any:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    made = {
        "lora": lambda: peft.LoraConfig(r=4, target_modules="all-linear"),
        "head": lambda: peft.LoraConfig(
            r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]
        ),
        "tokens": lambda: peft.LoraConfig(
            r=4, target_modules=["q_proj"], trainable_token_indices=[3, 5]
        ),
        "ia3": lambda: peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
        ),
        "layernorm": lambda: peft.LNTuningConfig(target_modules=["norm"]),
    }
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(small.llama), made[kind]())
    with torch.no_grad():
        for value in (p for p in model.parameters() if p.requires_grad):
            value += torch.randn_like(value) * 0.1
    return model.eval()


@pytest.mark.parametrize("kind", ["lora", "head", "tokens", "ia3", "layernorm"])
def test_it_is_the_base_that_is_left(small: Small, kind: str) -> None:
    """Logits inside are those of the library's `disable_adapter`, and outside as before; what is
    trained stays the same."""
    import torch

    model, ids = _adapted(small, kind), torch.tensor([[3, 5, 7, 9]])

    def logits() -> Any:
        return model(input_ids=ids).logits

    with torch.no_grad():
        tuned = logits()
        with model.disable_adapter():
            base = logits()
    assert not torch.equal(tuned, base)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    switch_quickly(model)
    with torch.no_grad(), model.disable_adapter():
        assert torch.equal(logits(), base)
        with model.disable_adapter():
            assert torch.equal(logits(), base)
        assert torch.equal(logits(), base), "the inner one switched on what it had not switched off"
    with torch.no_grad():
        assert torch.equal(logits(), tuned)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trained


def test_an_error_inside_leaves_it_on(small: Small) -> None:
    """Whoever catches it goes on with the adapter."""
    import torch

    model, ids = _adapted(small, "lora"), torch.tensor([[3, 5, 7, 9]])
    switch_quickly(model)
    with torch.no_grad():
        tuned = model(input_ids=ids).logits
        with pytest.raises(ValueError, match="broken"), model.disable_adapter():
            raise ValueError("broken")
        assert torch.equal(model(input_ids=ids).logits, tuned)


def test_with_gradients_the_librarys_own_way_is_taken(small: Small) -> None:
    """Adapters that are off get none there."""
    model = _adapted(small, "lora")
    switch_quickly(model)
    with model.disable_adapter():
        assert not any(p.requires_grad for p in model.parameters())
    assert any(p.requires_grad for p in model.parameters())
