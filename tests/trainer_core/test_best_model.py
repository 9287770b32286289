"""The best evaluation's weights, early stopping and the gate before publishing."""

from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from trainer_core.capabilities import check
from trainer_core.errors import BelowGate
from trainer_core.gate import require_gate
from trainer_core.spec import Gate, TrainSpec

LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}
ADALORA = {"type": "adalora", "init_r": 4, "target_r": 2, "tinit": 2, "tfinal": 4}
STEADY = {"lr_scheduler_type": "constant", "warmup_steps": 0, "learning_rate": 0.05}
"""Then a run that ends at a step has the very weights of a longer one at that step."""
EVERY_3 = {"strategy": "steps", "steps": 3}
BEST = {"load_best_model_at_end": True, "save_steps": 4}


def _evaluated(run: Outcome) -> dict[int, float]:
    return {m["step"]: m["eval_loss"] for m in run.of("metrics") if "eval_loss" in m}


def _weights(run: Outcome) -> bytes:
    [path] = (run.work / "model").glob("*.safetensors")
    return path.read_bytes()


def _best_step(losses: dict[int, float]) -> int:
    return min(losses, key=lambda step: losses[step])


@pytest.mark.train
@pytest.mark.parametrize("adapter", [None, LORA], ids=["full", "lora"])
def test_a29_the_best_steps_weights_are_published(
    world: World, zygote: Zygote, adapter: dict[str, Any] | None
) -> None:
    """Random rows are only learned by heart, so the validation loss soon rises again; what is
    published are, byte for byte, the weights of a run that ends at the best evaluation."""
    name = "lora" if adapter else "full"
    blocks = {"adapter": adapter, "evaluation": EVERY_3}
    run = zygote.run(
        world.launch(f"best-{name}", training=STEADY | {"max_steps": 30}, checkpoint=BEST, **blocks)
    )
    assert run.code == 0, run.log
    losses = _evaluated(run)
    best = _best_step(losses)
    assert 0 < best < 30, losses
    short = zygote.run(
        world.launch(f"best-{name}-short", training=STEADY | {"max_steps": best}, **blocks)
    )
    assert _weights(run) == _weights(short)
    card = (run.work / "model/README.md").read_text()
    assert f"({best} steps)" in card
    assert f"| validation loss | {losses[best]:.4f} |" in card


@pytest.mark.train
def test_a29_the_best_weights_outlive_a_kill(world: World, zygote: Zygote) -> None:
    """AdaLoRA, whose ranks at the best step are others than at the last one. It learns so fast that
    no later evaluation comes near the best one."""
    fast = STEADY | {"learning_rate": 0.5}
    blocks = {"adapter": ADALORA, "training": fast, "evaluation": EVERY_3, "checkpoint": BEST}
    whole = zygote.run(world.launch("kept-whole", **blocks))
    assert whole.code == 0, whole.log
    losses = _evaluated(whole)
    best = _best_step(losses)
    kill = max(best, 8) + 6
    assert kill < 30, losses
    killed = zygote.run(
        world.launch("kept-killed", **blocks), signals=[signal_at("metrics", "SIGKILL", step=kill)]
    )
    assert killed.code == -9
    launch = world.launch("kept-resumed", **blocks)
    [*_, newest] = sorted((killed.work / "checkpoints").iterdir())
    assert int(newest.name.removeprefix("step-")) > best
    launch["paths"]["resume_from"] = str(newest)
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert _weights(resumed) == _weights(whole)


@pytest.mark.train
def test_early_stopping_ends_after_its_patience(world: World, zygote: Zygote) -> None:
    checkpoint = {"early_stopping": {"patience": 2}, **BEST}
    blocks = {"training": STEADY, "evaluation": EVERY_3, "checkpoint": checkpoint}
    run = zygote.run(world.launch("early", **blocks))
    assert run.code == 0, run.log
    losses = _evaluated(run)
    assert max(losses) == _best_step(losses) + 6 < 30
    assert run.result["step"] == max(losses)
    assert any("ends early" in log["message"] for log in run.of("log"))
    # A resume from its last checkpoint trains nothing more and publishes the same.
    launch = world.launch("early-resumed", **blocks)
    launch["paths"]["resume_from"] = str(run.work / f"checkpoints/step-{max(losses):08d}")
    again = zygote.run(launch)
    assert again.code == 0, again.log
    assert again.losses == {}
    assert _weights(again) == _weights(run)


@pytest.mark.train
def test_early_stopping_is_decided_after_a_resume(world: World, zygote: Zygote) -> None:
    """The evaluation that ends the run is cut short by a signal, and made before the next step."""
    checkpoint = {"early_stopping": {"patience": 1}, **BEST}
    blocks = {"training": STEADY, "evaluation": EVERY_3, "checkpoint": checkpoint}
    whole = zygote.run(world.launch("early-whole", **blocks))
    last = max(_evaluated(whole))
    stopped = zygote.run(
        world.launch("early-stopped", **blocks),
        signals=[signal_at("metrics", "SIGTERM", step=last)],
    )
    assert stopped.code == 75
    assert max(_evaluated(stopped)) < last == stopped.result["step"]
    launch = world.launch("early-goes-on", **blocks)
    launch["paths"]["resume_from"] = str(stopped.work / f"checkpoints/step-{last:08d}")
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert _evaluated(resumed) == {last: _evaluated(whole)[last]}
    assert resumed.losses == {}
    assert _weights(resumed) == _weights(whole)


@pytest.mark.train
def test_the_model_before_the_first_step_is_measured(world: World, zygote: Zygote) -> None:
    """Against the base model's loss over all trained tokens, by Transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    from tests.trainer_core.tiny import random_rows

    evaluation = {"compare_base": True, "strategy": "epoch"}
    run = zygote.run(world.launch("base", adapter=LORA, evaluation=evaluation))
    plain = zygote.run(world.launch("base-not", adapter=LORA))
    assert run.losses == plain.losses
    model = AutoModelForCausalLM.from_pretrained(world.model).eval()
    total = tokens = 0.0
    for row in random_rows(7, seed=1):
        labels = torch.tensor([row["labels"]])
        count = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([row["input_ids"]]), labels=labels).loss
        total, tokens = total + loss.item() * count, tokens + count
    assert _evaluated(run)[0] == pytest.approx(total / tokens, rel=1e-5)


@pytest.mark.train
@pytest.mark.parametrize(
    ("gate", "code", "said"),
    [
        ({"metric": "loss", "threshold": 100.0}, 0, ""),
        ({"metric": "loss", "threshold": 0.5}, 76, "wants at most 0.5"),
        ({"metric": "loss", "min_improvement": 50.0}, 76, "wants 50"),
    ],
    ids=["reached", "threshold", "improvement"],
)
def test_a_model_below_the_gate_is_not_published(
    world: World, zygote: Zygote, gate: dict[str, Any], code: int, said: str
) -> None:
    """A random model's loss is ln 512 = 6.2 and can fall by no more than that."""
    name = f"gate-{gate.get('threshold', 'gain')}"
    run = zygote.run(world.launch(name, training={"max_steps": 3}, publish={"gate": gate}))
    assert run.code == code, run.log
    assert (run.work / "model").exists() == (code == 0)
    if code:
        assert run.result["reason"] == run.exit["reason"] == "below_gate"
        assert said in run.result["message"]
        assert "model" not in [artifact["kind"] for artifact in run.of("artifact")]


def test_the_gate_knows_which_way_is_better() -> None:
    """Accuracy must rise, loss must fall, and what is exactly demanded is enough."""
    base = {"eval_accuracy": 0.5, "eval_loss": 2.0}
    tuned = {"eval_accuracy": 0.75, "eval_loss": 1.5}
    for metric, threshold, gain in (("accuracy", 0.75, 0.25), ("loss", 1.5, 0.5)):
        require_gate(Gate(metric=metric, threshold=threshold, min_improvement=gain), tuned, base)
        with pytest.raises(BelowGate, match="min_improvement"):
            require_gate(Gate(metric=metric, min_improvement=gain + 0.01), tuned, base)
        with pytest.raises(BelowGate):
            require_gate(Gate(metric=metric, min_improvement=0.0), base, tuned)


def _problems(**blocks: Any) -> dict[str, str]:
    document = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "owner/model"},
        "data": {
            "train": [{"source": "folder", "path": "rows.jsonl"}],
            "validation": {"split_ratio": 0.1},
        },
    }
    spec = TrainSpec.model_validate(document | blocks)
    return {problem.pointer: problem.message for problem in check(spec)}


def test_refusals() -> None:
    alone = {"train": [{"source": "folder", "path": "rows.jsonl"}]}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "acuracy"}
    assert (
        "it measures loss, mean_token_accuracy"
        in _problems(checkpoint=best)["/checkpoint/metric_for_best_model"]
    )
    assert (
        "has no effect"
        in _problems(checkpoint={"greater_is_better": True})["/checkpoint/greater_is_better"]
    )
    gate = {"gate": {"metric": "f1_macro", "threshold": 0.5}}
    assert "task 'sft' does not measure" in _problems(publish=gate)["/publish/gate/metric"]
    found = _problems(
        data=alone,
        publish={"gate": {"metric": "loss", "threshold": 1.0}},
        checkpoint={"early_stopping": {}},
        evaluation={"compare_base": True},
    )
    assert found.keys() == {
        "/publish/gate",
        "/checkpoint/early_stopping",
        "/evaluation/compare_base",
    }
    assert all("data.validation" in message for message in found.values())
    assert (
        _problems(checkpoint={"early_stopping": {"patience": 2}, "greater_is_better": True}) == {}
    )


def test_a_gate_demands_something() -> None:
    with pytest.raises(ValueError, match="it demands nothing"):
        Gate(metric="loss")
