"""Packing: a sample in a packed row says what it says alone."""

from typing import Any

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.tiny import pack_rows, random_rows
from trainer_core.backends import hf
from trainer_core.collator import Collator
from trainer_core.errors import InvalidSpec
from trainer_core.packed_attention import attend_by_sample
from trainer_core.spec import Paths, TrainSpec
from trainer_core.token_trainer import check_isolation

pytestmark = pytest.mark.train

TOLERANCE = 1e-5
"""Rows of other lengths are added up in another order: about 2e-7 of a logit was measured, and
samples that see each other differ by 0.3."""


def _model(world: World) -> Any:
    spec = TrainSpec.model_validate(world.launch("unused")["spec"])
    return hf.load(spec, Paths(work="unused"), {}).model


def test_a4_packed_samples_do_not_see_each_other(world: World) -> None:
    """Logits of a sample inside of a padded, packed batch equal those of the sample alone."""
    import torch

    model = _model(world).eval()
    rows = random_rows(6, seed=3)
    batch = Collator(0)([*pack_rows(rows, 48)])
    assert "attention_mask" not in batch
    del batch["labels"]
    with torch.no_grad():
        packed = model(**batch, use_cache=False).logits
        alone = [model(input_ids=torch.tensor([r["input_ids"]])).logits[0] for r in rows]
    # Padding is token 0, which no row holds.
    starts = (batch["position_ids"] == 0) & (batch["input_ids"] != 0)
    places = starts.nonzero().tolist()
    for (row, start), logits in zip(places, alone, strict=True):
        inside = packed[row, start : start + len(logits)]
        assert (inside - logits).abs().max().item() <= TOLERANCE


@pytest.mark.parametrize("window", [None, 5])
def test_attention_sample_by_sample_is_attention(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and gradients on packed rows, also with grouped heads and a sliding window."""
    import torch
    from transformers import AttentionInterface, MistralConfig, MistralForCausalLM
    from transformers.integrations import sdpa_attention

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": window}
    config = MistralConfig(**sizes, **heads, attn_implementation="sdpa")
    model = MistralForCausalLM(config)
    batch = Collator(0)([*pack_rows(random_rows(6, seed=3), 48)])
    del batch["labels"]

    def results() -> list[Any]:
        model.zero_grad()
        logits = model(**batch, use_cache=False).logits
        logits.square().mean().backward()
        return [logits, *(parameter.grad for parameter in model.parameters())]

    mapping = dict(AttentionInterface._global_mapping)
    monkeypatch.setattr(AttentionInterface, "_global_mapping", mapping)
    mapping["sdpa"] = sdpa_attention.sdpa_attention_forward
    whole_rows = results()
    calls: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *parts, **named: (calls.append(parts[0].shape[2]), kernel(*parts, **named))[1],
    )
    attend_by_sample()
    torch.testing.assert_close(results(), whole_rows, rtol=1e-4, atol=TOLERANCE)
    assert max(calls) < 48
    assert sum(calls) == 2 * batch["input_ids"].numel()


def test_a4_models_that_leak_are_refused(world: World) -> None:
    """The same check fails where a model ignores position ids (here: gets none)."""
    model = _model(world)
    check_isolation(model)
    original = model.forward
    model.forward = lambda input_ids, **_: original(input_ids=input_ids)
    with pytest.raises(InvalidSpec, match=r"set task\.packing to false"):
        check_isolation(model)


@pytest.mark.parametrize("packed", [False, True])
def test_a28_planned_steps_are_run(world: World, zygote: Zygote, packed: bool) -> None:  # noqa: FBT001
    """2 epochs of batches of 4: ⌈rows / 4⌉ steps each, counted from packed rows.

    Every other task type: `test_resume.py`.
    """
    rows = len([*pack_rows(random_rows(60), 48)]) if packed else 60
    run = zygote.run(world.launch(f"planned-{packed}", packed=packed))
    planned = {p["total_steps"] for p in run.of("progress")}
    assert planned == {2 * -(-rows // 4)} == {max(run.losses)}
