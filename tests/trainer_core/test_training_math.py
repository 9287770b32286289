"""The numbers: padding, precision, evaluation, the loss itself; see also `equivalence/`."""

from typing import Any

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.tiny import random_rows
from trainer_core.backends import hf
from trainer_core.collator import Collator
from trainer_core.loss_kernel import TorchLogProbs
from trainer_core.spec import Paths, TrainSpec

pytestmark = pytest.mark.train

LORA = {"type": "lora", "r": 4}


def _spec(world: World, **changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(world.launch("unused", **changes)["spec"])


def _load(world: World, **changes: Any) -> Any:
    return hf.load(_spec(world, **changes), Paths(work="unused"), {})


def test_a2_padding_is_masked_by_length() -> None:
    """With pad = EOS = 2 every real EOS keeps its label and its place in the attention mask."""
    rows = [
        {"input_ids": [5, 6, 2], "labels": [-100, 6, 2]},
        {"input_ids": [7, 2, 8, 9, 2], "labels": [-100, 2, -100, 9, 2]},
    ]
    batch = Collator(2)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 2, 2, 2], [7, 2, 8, 9, 2]]
    assert batch["labels"].tolist() == [[-100, 6, 2, -100, -100], [-100, 2, -100, 9, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_packed_rows_lose_no_boundary() -> None:
    """A sample's first token is never a target, and padding is a document of its own."""
    rows = [
        {"input_ids": [5, 6, 7], "labels": [5, 6, 7], "position_ids": [0, 1, 0]},
        {"input_ids": [8], "labels": [8], "position_ids": [0]},
    ]
    batch = Collator(0)(rows)
    assert batch["labels"].tolist() == [[-100, 6, -100], [-100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 0], [0, 0, 1]]
    flat = Collator(0, flatten=True)(rows)
    assert flat["input_ids"].tolist() == [[5, 6, 7, 8]]
    assert flat["position_ids"].tolist() == [[0, 1, 0, 0]]


def test_a16_trainables_are_fp32_under_fp16(world: World) -> None:
    import torch

    for adapter, base in ((LORA, torch.float16), (None, torch.float32)):
        model = _load(world, precision="fp16", adapter=adapter).model
        trainable = {p.dtype for p in model.parameters() if p.requires_grad}
        assert trainable == {torch.float32}
        assert model.get_input_embeddings().weight.dtype == base


def test_evaluation_loss_is_the_mean_over_tokens(world: World, zygote: Zygote) -> None:
    """Equal to the cross entropy over all validation tokens, whatever the batch size."""
    import torch

    training = {"max_steps": 2, "learning_rate": 1e-9, "per_device_eval_batch_size": 3}
    run = zygote.run(world.launch("eval-mean", training=training))
    [reported] = [m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m]
    model = _load(world).model.eval()
    total = tokens = 0
    for row in random_rows(7, seed=1):
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        total += torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="sum").item()
        tokens += int((labels[1:] != -100).sum())
    assert reported == pytest.approx(total / tokens, abs=1e-5)


def test_evaluating_does_not_change_the_training(world: World, zygote: Zygote) -> None:
    """With dropout: the same losses with an evaluation each step and without any."""
    often = zygote.run(world.launch("often", evaluation={"strategy": "steps", "steps": 1}))
    never = zygote.run(world.launch("seldom", evaluation={"strategy": "no"}))
    assert often.losses == never.losses
    assert not any("eval_loss" in m for m in never.of("metrics"))


@pytest.mark.parametrize("at_once", [None, 1024])
def test_loss_kernel_is_cross_entropy(at_once: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients equal torch's own, also where tokens are taken in pieces."""
    import torch

    monkeypatch.setattr(TorchLogProbs, "tokens_at_once", at_once)
    tokens = 2500
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(tokens, 8, generator=generator), torch.randn(11, 8)
    targets = torch.randint(11, (tokens,), generator=generator)
    results = []
    for ours in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if ours:
            log_probs, entropy, *_, top = TorchLogProbs.apply(
                h, w, None, targets, 1.0, 0, 30.0, 2.0
            )
            loss = -log_probs.sum()
        else:
            logits = 30 * torch.tanh(h @ w.T * 2.0 / 30)
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            expected = torch.distributions.Categorical(logits=logits)
        loss.backward()
        results.append((loss, h.grad, w.grad))
    for ours_, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, expected.entropy(), rtol=1e-4, atol=1e-4)
    assert top.tolist() == (logits.argmax(-1) == targets).tolist()
