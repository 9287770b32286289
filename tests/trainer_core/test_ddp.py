"""Training in several processes: every row once, one loss, one voice, one end."""

import math
from typing import Any

import pytest

from tests.trainer_core.runs import Outcome, World, Zygote, signal_at
from tests.trainer_core.small_tasks import Small, opinions
from tests.trainer_core.tiny import make_tiny_model, write_prepared
from trainer_core.capabilities import TABLE, check
from trainer_core.hardware import Hardware
from trainer_core.rank_share import RankShare
from trainer_core.ranks import Ranks
from trainer_core.resolve import resolve
from trainer_core.spec import TrainSpec
from trainer_core.spread import processes_of
from trainer_core.task import TASKS

DDP = {"strategy": "ddp", "processes": 2}
LORA = {"type": "lora", "r": 4, "lora_dropout": 0.1}


def _weights(outcome: Outcome) -> list[bytes]:
    return [path.read_bytes() for path in sorted((outcome.work / "model").glob("*.safetensors"))]


def _evaluations(outcome: Outcome) -> list[dict[str, Any]]:
    return [m for m in outcome.of("metrics") if "eval_loss" in m]


class _Rank(Ranks):
    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("batches", [1, 2, 3, 5, 8])
def test_each_batch_is_one_ranks_and_nothing_is_repeated(count: int, batches: int) -> None:
    """Fillers hold one row, count for nothing, and make all ranks' micro-batches as many."""
    rows = [[2 * i, 2 * i + 1] for i in range(batches)]
    for fills in (True, False):
        seen: list[list[int]] = []
        lengths = set()
        for number in range(count):
            share = RankShare(rows, _Rank(number, count), fills=fills)
            own = [(batch, share.is_filler) for batch in share]
            assert len(own) == len(share)
            lengths.add(len(own))
            seen += [batch for batch, is_filler in own if not is_filler]
            assert [batch for batch, is_filler in own if is_filler] in ([], [[0]])
        assert sorted(seen) == rows
        assert lengths == {-(-batches // count)} if fills else max(lengths) - min(lengths) <= 1


@pytest.mark.train
def test_a7_two_processes_learn_as_one(world: World, zygote: Zygote) -> None:
    """15 batches an epoch, so that the last round lacks one; rows of 8 to 24 tokens.

    Learnable rows, each with a beginning of its own: three epochs lower the loss of those that were
    held out, every ninth, by 10 % at least.
    """
    rows = [{"input_ids": ids, "labels": ids} for ids in (_counted(n) for n in range(67))]
    seen, held = [row for n, row in enumerate(rows) if n % 9 != 4], rows[4::9]
    assert (len(seen), len(held)) == (60, 7)
    prepared = write_prepared(world.folder / "counted", seen, held)
    model = make_tiny_model(world.folder / "calm-ddp")  # without dropout
    runs = []
    for name, distributed, accumulated in (("one", {"strategy": "none"}, 2), ("two", DDP, 1)):
        training = {"gradient_accumulation_steps": accumulated, "num_train_epochs": 3}
        launch = world.launch(
            f"a7-{name}",
            model={"source": "folder", "name_or_path": str(model)},
            distributed=distributed,
            training=training,
            evaluation={"strategy": "epoch", "compare_base": True},
        )
        launch["paths"]["prepared"] = str(prepared)
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    one, two = runs
    assert two.losses.keys() == one.losses.keys() == set(range(1, 25))
    # fp32: sums of two halves round elsewhere than one sum, 1e-7 a step at losses of about 6.
    assert two.losses == pytest.approx(one.losses, abs=1e-5)
    for ours, theirs in zip(_evaluations(two), _evaluations(one), strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], abs=1e-5)
        accuracy = "eval_mean_token_accuracy"
        assert ours[accuracy] == pytest.approx(theirs[accuracy], abs=1e-5)
    before, *_, after = (m["eval_loss"] for m in _evaluations(two))
    assert after <= 0.9 * before
    assert two.of("progress")[-1]["total_steps"] == 24
    phases = [p["phase"] for p in two.of("phase")]
    assert phases == [p["phase"] for p in one.of("phase")]  # one voice


def _counted(start: int) -> list[int]:
    return [10 + (start + i) % 80 for i in range(8 + start % 17)]


@pytest.mark.train
def test_a5_data_are_prepared_once_and_before_others_start(small: Small, zygote: Zygote) -> None:
    """Only rank 0 prepares; with validation rows that do not part evenly."""
    task = {"type": "text_classification"}
    launch = small.launch("a5", task, opinions(30), opinions(9, seed=1), distributed=DDP)
    run = zygote.run(launch)
    assert run.code == 0, run.log
    assert len([*(run.work / "prepared").iterdir()]) == 1
    assert run.losses.keys() == set(range(1, 9))
    assert not [*run.work.glob(".ranks-*")]


@pytest.mark.train
def test_a20_lora_with_checkpointing_in_two_processes(world: World, zygote: Zygote) -> None:
    """Recomputed activations change nothing, dropout included."""
    runs = []
    for name, on in (("off", False), ("on", True)):
        training = {"gradient_checkpointing": on, "max_steps": 6}
        launch = world.launch(f"a20-{name}", distributed=DDP, adapter=LORA, training=training)
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    # Recomputing repeats the same operations on the same numbers.
    assert runs[1].losses == pytest.approx(runs[0].losses, abs=1e-6)


@pytest.mark.train
def test_a9_four_bits_are_kept_on_each_rank(world: World, zygote: Zygote) -> None:
    """QLoRA in two processes: the same losses as in one, up to the rounding of NF4 products."""
    runs = []
    model = {"source": "folder", "name_or_path": str(make_tiny_model(world.folder / "calm-4bit"))}
    for name, distributed, accumulated in (("one", {"strategy": "none"}, 2), ("two", DDP, 1)):
        launch = world.launch(
            f"a9-{name}",
            model=model,
            distributed=distributed,
            adapter=LORA | {"lora_dropout": 0.0},
            quantization={"bits": 4},
            training={"gradient_accumulation_steps": accumulated, "max_steps": 6},
        )
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    assert runs[1].losses == pytest.approx(runs[0].losses, abs=1e-4)


@pytest.mark.train
def test_a8_killed_in_two_processes_and_resumed_exactly(world: World, zygote: Zygote) -> None:
    """Dropout is on; rank 0 is killed at step 13, the checkpoint is of step 12."""
    whole = zygote.run(world.launch("ddp-whole", distributed=DDP, adapter=LORA))
    assert whole.code == 0, whole.log
    launch = world.launch("ddp-killed", distributed=DDP, adapter=LORA)
    killed = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", step=13)])
    assert killed.code == 70
    assert killed.result["reason"] == "killed"
    assert "rank 0 of 2 processes was killed by SIGKILL" in killed.result["message"]
    assert killed.losses == {s: loss for s, loss in whole.losses.items() if s <= 13}

    launch["attempt_id"] = "ddp-resumed"
    launch["paths"] |= {
        "work": str(world.folder / "ddp-resumed"),
        "resume_from": str(killed.work / "checkpoints" / "step-00000012"),
    }
    resumed = zygote.run(launch)
    assert resumed.code == 0, resumed.log
    assert resumed.of("resumed") == [{"step": 12}]
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > 12}
    assert _weights(resumed) == _weights(whole)
    assert _evaluations(resumed)[-1] == _evaluations(whole)[-1]


@pytest.mark.train
@pytest.mark.parametrize("who", ["self", "launcher", "peers"])
def test_a_signal_stops_all_ranks_at_the_same_step(world: World, zygote: Zygote, who: str) -> None:
    """Whoever gets it; what is saved is whole, and goes on."""
    launch = world.launch(f"ddp-stop-{who}", distributed=DDP)
    stopped = zygote.run(launch, signals=[signal_at("metrics", "SIGTERM", who=who, step=5)])
    assert stopped.code == 75, stopped.log
    assert stopped.result["status"] == "interrupted"
    step = stopped.result["step"]
    assert step in (5, 6)  # told before or after the ranks' word about step 5's successor
    assert stopped.of("checkpoint")[-1]["step"] == step
    resumed = zygote.run(launch)  # the same folder: its newest checkpoint is found
    assert resumed.code == 0, resumed.log
    assert {"step": step} in resumed.of("resumed")
    assert resumed.result["step"] == max(resumed.losses)


@pytest.mark.train
def test_a_dead_rank_ends_the_run_with_its_cause(world: World, zygote: Zygote) -> None:
    """Rank 1 is killed: rank 0, which waits for it, is ended within seconds."""
    launch = world.launch("ddp-dead", distributed=DDP)
    run = zygote.run(launch, signals=[signal_at("metrics", "SIGKILL", who="peers", step=3)])
    assert run.code == 70
    assert run.exit["reason"] == run.result["reason"] == "killed"
    assert run.exit["retryable"] is True
    assert run.exit["message"] == (
        "rank 1 of 2 processes was killed by SIGKILL, perhaps for lack of memory; the others were"
        " ended"
    )
    assert [event.type for event in run.events].count("result") == 1


@pytest.mark.train
def test_a_rank_that_fails_says_why(world: World, zygote: Zygote) -> None:
    """A loss that is no number, on every rank: the first word counts, and it is said once."""
    import torch
    from safetensors.torch import load_file, save_file

    broken = make_tiny_model(world.folder / "broken-ddp")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], math.inf)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    model = {"source": "folder", "name_or_path": str(broken)}
    run = zygote.run(world.launch("ddp-diverged", distributed=DDP, model=model))
    assert run.code == 72, run.log
    assert run.result["reason"] == "diverged"
    assert "the loss is nan at step 1" in run.result["message"]
    assert [event.type for event in run.events].count("result") == 1


@pytest.mark.train
def test_the_best_model_and_the_base_are_known_in_two_processes(
    world: World, zygote: Zygote
) -> None:
    """What rank 0 keeps is published: the same as in one process."""
    runs = []
    model = {"source": "folder", "name_or_path": str(make_tiny_model(world.folder / "calm-best"))}
    for name, distributed, accumulated in (("one", {"strategy": "none"}, 2), ("two", DDP, 1)):
        launch = world.launch(
            f"best-{name}",
            model=model,
            distributed=distributed,
            training={"gradient_accumulation_steps": accumulated, "num_train_epochs": 3},
            evaluation={"strategy": "epoch", "compare_base": True},
            checkpoint={"load_best_model_at_end": True},
        )
        runs.append(zygote.run(launch))
        assert runs[-1].code == 0, runs[-1].log
    said = [[e.data["message"] for e in r.events if e.type == "log"][1:] for r in runs]
    assert [line.split(":")[0] for line in said[0]] == [line.split(":")[0] for line in said[1]]


def _spec(task: str, **blocks: Any) -> TrainSpec:
    needs = {"rewards": [{"type": "length", "max": 4}]} if task == "grpo" else {}
    document = {
        "task": {"type": task, **needs},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "shop.jsonl"}]},
    }
    return TrainSpec.model_validate(document | blocks)


@pytest.mark.parametrize("task", [name for name, each in TASKS.items() if each.FACTS.trains])
def test_the_table_says_what_can_be_spread(task: str) -> None:
    """A task that cannot be is refused by its own reason, and `auto` keeps it in one process."""
    reason = TASKS[task].FACTS.ddp
    [row] = [
        r
        for r in TABLE
        if (r.task, r.adapter, r.quantization, r.strategy) == (task, "none", "none", "ddp")
    ]
    assert row.reason == reason
    problems = [p for p in check(_spec(task, distributed=DDP)) if "ddp" in p.message]
    assert bool(problems) == (reason is not None)
    assert all(reason in p.message for p in problems)
    four = Hardware(gpus=4, gpu_memory_gb=80, bf16=True)
    resolved = resolve(_spec(task), four)
    chosen = resolved.spec.distributed
    assert (chosen.strategy, chosen.processes) == (("none", 1) if reason else ("ddp", 4))
    assert [w.code for w in resolved.warnings].count("gpus_unused") == (reason is not None)


def test_how_many_processes_there_are() -> None:
    """`auto`: one for each GPU, one on a CPU; `ddp` on a CPU: two; what is said counts."""
    assert processes_of(_spec("sft"), gpus=0) == 1
    assert processes_of(_spec("sft"), gpus=3) == 3
    assert processes_of(_spec("sft", distributed={"strategy": "ddp"}), gpus=0) == 2
    assert processes_of(_spec("sft", distributed={"strategy": "ddp"}), gpus=1) == 1
    assert processes_of(_spec("sft", distributed={"processes": 4}), gpus=0) == 4
    assert processes_of(_spec("sft", distributed={"strategy": "none"}), gpus=8) == 1


def test_processes_that_cannot_be_had_are_refused() -> None:
    two = Hardware(gpus=2, gpu_memory_gb=24, bf16=True)
    [problem] = check(_spec("sft", distributed={"processes": 3}), two)
    assert problem.pointer == "/distributed/processes"
    assert "each process needs a GPU of its own, and there are 2" in problem.message
    [problem] = check(_spec("sft", distributed={"strategy": "none", "processes": 2}))
    assert "but the strategy is 'none': use 'ddp'" in problem.message


def test_a_step_is_shared_by_the_processes() -> None:
    """Four processes make the rows of one step that one process would have made."""
    one = resolve(_spec("sft", distributed={"strategy": "none"}), Hardware()).spec.training
    four = resolve(_spec("sft", distributed={"processes": 4}), Hardware()).spec.training

    def rows(training: Any) -> int:
        return int(training.per_device_train_batch_size * training.gradient_accumulation_steps)

    assert rows(one) == 4 * rows(four) == 16
