"""Trainings that run and come to nothing: stopped with a plain cause, and no others."""

import json
import math
import random

import pytest

from tests.trainer_core.runs import World, Zygote
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.errors import Diverged, Stalled
from trainer_core.watch import FLAT_STEPS, SLOW_SECONDS, WINDOW, Watch

RNG = random.Random(3)  # noqa: S311 - test data


def _see(watch: Watch, losses: list[float], gradient: float | None = 1.0) -> None:
    for step, loss in enumerate(losses, start=1):
        watch.loss(step, loss, gradient)


def test_a_loss_that_rises_for_good() -> None:
    """From 4 down to 1, then to 9: told when the mean of 20 steps is twice what it began with."""
    falls = [4.0] * WINDOW + [1.0] * WINDOW
    with pytest.raises(Diverged, match=r"the loss has risen to .* after 4 at the beginning and 1"):
        _see(Watch(), falls + [9.0] * WINDOW)


def test_a_loss_far_above_that_of_guessing() -> None:
    """Weights that the first steps destroyed, before any mean of 20 steps: of 256 tokens a guess
    has 5.55, and five steps above 16.6 are told. A rare spike, and a bad beginning, are let be."""
    lost = [2.7, 30.0, 600.0, 700.0, 650.0, 640.0, 660.0]
    with pytest.raises(
        Diverged, match=r"the loss has risen to 640 at step 6, after 2\.7 .* guesses has 5\.5"
    ):
        _see(Watch(guess=math.log(256)), lost)
    _see(Watch(guess=math.log(256)), [2.7, 30.0, 40.0, 30.0, 20.0, 3.0, 30.0, 2.0] * 2)
    _see(Watch(guess=math.log(2)), [7.0, 6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.0])
    _see(Watch(), lost[:6])


def test_losses_that_are_let_be() -> None:
    """Noise, single spikes, a slow start that rises by half, forgetting that stays below twice the
    beginning, and losses of advantages, which say nothing."""
    noise = [max(0.0, RNG.gauss(2.0, 1.0)) for _ in range(500)]
    spikes = [2.0 + (100.0 if step % 97 == 0 else 0.0) for step in range(90)]
    for losses in (noise, spikes, [2.0] * 30 + [3.0] * 60, [4.0] * 30 + [0.5] * 30 + [7.0] * 60):
        _see(Watch(), losses)
    _see(Watch(falls=False), [0.1] * 30 + [5.0] * 60)


def test_a_resumed_watch_knows_the_beginning() -> None:
    """From 4 down to 0.1, resumed there: 0.5 is five times the best, and far below the beginning;
    9 is told as it would be without the resume. A checkpoint that knows no losses ends nothing."""
    before = Watch()
    _see(before, [4.0] * WINDOW + [0.1] * WINDOW)
    kept = json.loads(json.dumps(before.state()))
    resumed = Watch()
    resumed.restore(kept)
    _see(resumed, [0.5] * 60)
    with pytest.raises(Diverged, match=r"after 4 at the beginning and 0\.1 at best"):
        _see(resumed, [9.0] * WINDOW)
    early = Watch()
    early.restore(json.loads(json.dumps(Watch().state())))
    with pytest.raises(Diverged):
        _see(early, [1.0] * WINDOW + [9.0] * WINDOW)
    old = Watch()
    old.restore({})
    _see(old, [0.1] * WINDOW + [9.0] * 60)


@pytest.mark.train
def test_checkpoints_keep_what_the_watch_has_seen(world: World, zygote: Zygote) -> None:
    """The window of the newest losses and the mean of steps 1 to 20, where a resume goes on too."""
    run = zygote.run(world.launch("watched", training={"max_steps": 24}))
    assert run.code == 0, run.log
    losses = [run.losses[step] for step in range(1, 25)]
    folder = run.work / "checkpoints/step-00000024"
    kept = json.loads((folder / "loop_state.json").read_text())["watch"]
    assert kept["losses"] == pytest.approx(losses[-WINDOW:])
    assert kept["first"] == pytest.approx(sum(losses[:WINDOW]) / WINDOW)
    launch = world.launch("watched-resumed", training={"max_steps": 24})
    launch["paths"]["resume_from"] = str(run.work / "checkpoints/step-00000020")
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    again = resumed.work / "checkpoints/step-00000024/loop_state.json"
    assert json.loads(again.read_text())["watch"] == kept


def test_a_loss_that_no_weight_moves() -> None:
    """100 steps with the very same loss and no gradient; with a gradient, or a loss that changes in
    its sixth digit, it may be slow and is let be."""
    with pytest.raises(Diverged, match=f"6.2383 for {FLAT_STEPS} steps .* no\\s+trained weight"):
        _see(Watch(), [6.2383] * (FLAT_STEPS + 1), gradient=0.0)
    _see(Watch(), [6.2383] * 500, gradient=1e-9)
    _see(Watch(), [6.2383] * 500, gradient=None)
    _see(Watch(), [6.2383 + 1e-4 * RNG.random() for _ in range(500)], gradient=0.0)
    _see(Watch(), [6.2383] * FLAT_STEPS, gradient=0.0)


def test_steps_that_crawl() -> None:
    """Steps of 0.1 s that take 3 s from some time on: told after a quarter of an hour of it, and
    not where they recover in between, or were never quick."""
    now = 0.0
    watch = Watch(clock=lambda: now)

    def run(seconds: float, steps: int) -> None:
        nonlocal now
        for _ in range(steps):
            now += seconds
            watch.time(7, seconds)

    run(0.1, 50)
    enough = math.ceil(SLOW_SECONDS / 3.0)
    run(3.0, enough - 5)
    run(0.1, 50)
    run(3.0, enough - 5)
    with pytest.raises(Stalled, match=r"a step takes 3 s at step 7, and took 0.1 s before"):
        run(3.0, WINDOW)
    always = Watch(clock=lambda: now)
    for _ in range(2 * enough):
        always.time(1, 3.0)
    assert Stalled.retryable
    assert Stalled.reason == "stalled"


@pytest.mark.train
def test_a_run_that_learns_nothing_is_stopped(world: World, zygote: Zygote) -> None:
    """A head of zeros hands no gradient down to an adapter: the loss is ln 512 = 6.23832."""
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(world.folder / "deaf")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    run = zygote.run(
        world.launch(
            "deaf",
            model={"source": "folder", "name_or_path": str(folder)},
            adapter={"type": "lora", "r": 4},
            training={"max_steps": 200},
            evaluation={"strategy": "no"},
        )
    )
    assert run.code == 72
    assert "the loss has been 6.23832 for 100 steps (up to step 101)" in run.result["message"]
    assert run.exit["reason"] == "diverged"
    assert not (run.work / "model").exists()


@pytest.mark.train
def test_a_run_whose_loss_explodes_is_stopped(world: World, zygote: Zygote) -> None:
    """A learning rate that climbs by 0.025 a step, without a limit for gradients."""
    training = {
        "max_steps": 200, "learning_rate": 10.0, "max_grad_norm": 0.0, "warmup_steps": 400,
        "lr_scheduler_type": "constant_with_warmup",
    }  # fmt: skip
    run = zygote.run(world.launch("explodes", training=training, evaluation={"strategy": "no"}))
    assert run.code == 72
    assert "the loss has risen to" in run.result["message"]
    assert "training.learning_rate" in run.result["message"]
    assert run.result["step"] < 200
