"""What about samples, mixtures and streams cannot work is refused before anything is read."""

from typing import Any

import pytest

from trainer_core.capabilities import check
from trainer_core.hardware import Hardware
from trainer_core.resolve import resolve
from trainer_core.spec import TrainSpec
from trainer_core.task import TASKS

SOURCE = {"source": "folder", "path": "shop.jsonl"}
STEPS = {"max_steps": 10}


def spec(data: dict[str, Any], **blocks: Any) -> TrainSpec:
    document = {
        "task": {"type": "clm"},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [SOURCE]} | data,
    }
    return TrainSpec.model_validate(document | blocks)


def sources(*extra: dict[str, Any]) -> dict[str, Any]:
    return {"train": [SOURCE | each for each in extra]}


@pytest.mark.parametrize(
    ("data", "pointer", "message"),
    [
        (sources({"num_samples": 1, "fraction": 0.5}), "/train/0/fraction", "keep one of them"),
        (sources({"seed": 1}), "/train/0/seed", "no effect without num_samples or fraction"),
        (sources({"weight": 2}), "/train/0/weight", "no effect on a source alone"),
        (
            {"validation": [SOURCE | {"weight": 2}]},
            "/validation/0/weight",
            "no effect on validation rows",
        ),
        (
            {"stopping_strategy": "all_exhausted"},
            "/stopping_strategy",
            "no effect without the weight of a source",
        ),
        ({"max_bad_ratio": 0.5}, "/max_bad_ratio", "no effect without data.on_bad_row 'drop'"),
    ],
)
def test_samples_mixtures_and_bad_rows(data: dict[str, Any], pointer: str, message: str) -> None:
    [problem] = check(spec(data))
    assert problem.pointer == f"/data{pointer}"
    assert message in problem.message


WRAPPED = {"packing": True, "packing_strategy": "wrapped", "loss_on": "all"}


@pytest.mark.parametrize("policy", ["truncate_right", "truncate_left", "drop"])
@pytest.mark.parametrize(
    ("joined", "alone"),
    [
        ({"type": "clm"}, {"type": "clm", "packing": "bfd"}),
        ({"type": "mlm"}, {"type": "mlm", "line_by_line": True}),
        ({"type": "sft"} | WRAPPED, {"type": "sft"} | WRAPPED | {"packing_strategy": "bfd"}),
    ],
)
def test_a15_no_text_is_too_long_where_texts_are_joined(
    joined: dict[str, Any], alone: dict[str, Any], policy: str
) -> None:
    """Nothing of them is dropped or cut off, so a policy that says so is refused; the way out that
    the refusal names works."""
    data = {"over_length": policy}
    measured = {"type": "evaluation", "of": joined}
    for task, named in ((joined, "task."), (measured, "task.of.")):
        [problem] = check(spec(data, task=task))
        assert problem.pointer == "/data/over_length"
        words = "has no effect on texts that are joined and cut into full rows, as "
        assert words + named in problem.message
    for task in (alone, {"type": "evaluation", "of": alone}):
        assert check(spec(data, task=task)) == []
    assert check(spec({}, task=joined)) == []


def test_a27_a_stream_needs_max_steps() -> None:
    """The refusal names both fields, and the way out on either side."""
    [problem] = check(spec({"streaming": True}))
    assert problem.pointer == "/training/max_steps"
    assert "training.max_steps is missing: with data.streaming" in problem.message
    assert "say how many steps are made, or leave data.streaming out" in problem.message
    assert check(spec({"streaming": True}, training=STEPS)) == []


@pytest.mark.parametrize(
    ("data", "pointer", "message"),
    [
        (sources({"fraction": 0.5}), "/data/train/0/fraction", "needs to know all rows"),
        (sources({"num_samples": 9, "seed": 1}), "/data/train/0/seed", "needs to know all rows"),
        (
            {"validation": {"split_ratio": 0.1}},
            "/data/validation/split_ratio",
            "list sources in data.validation",
        ),
        (sources({}, {}), "/data/train/0/weight", "those behind it would never be read"),
        (
            sources({"weight": 1}, {}) | {"stopping_strategy": "all_exhausted"},
            "/data/stopping_strategy",
            "no source is read to its end",
        ),
    ],
)
def test_a27_what_needs_the_end_of_a_stream(
    data: dict[str, Any], pointer: str, message: str
) -> None:
    [problem] = check(spec(data | {"streaming": True}, training=STEPS))
    assert problem.pointer == pointer
    assert message in problem.message


BLOCKS: dict[str, dict[str, Any]] = {
    "grpo": {"rewards": [{"type": "length", "max": 4}]},
    "evaluation": {"of": {"type": "clm"}},
}


@pytest.mark.parametrize("task", [t for t, module in TASKS.items() if not module.FACTS.streams])
def test_a27_tasks_whose_rows_depend_on_each_other(task: str) -> None:
    block = {"type": task} | BLOCKS.get(task, {})
    found = check(spec({"streaming": True}, task=block))
    [problem] = [each for each in found if each.pointer == "/data/streaming"]
    assert "data.streaming is for tasks sft and clm" in problem.message
    assert f"what task '{task}' makes of a row depends on all of them" in problem.message


def test_a27_processes_are_known_before_rows_are_read() -> None:
    """`auto` takes one and says why; `ddp` must say how many."""
    given = spec({"streaming": True}, training=STEPS)
    hardware = Hardware(gpus=4, gpu_memory_gb=80, bf16=True)
    found = resolve(given, hardware)
    assert (found.spec.distributed.strategy, found.spec.distributed.processes) == ("none", 1)
    [warning] = [w for w in found.warnings if w.code == "gpus_unused"]
    assert "as many as distributed.processes says" in warning.message
    [problem] = check(spec({"streaming": True}, training=STEPS, distributed={"strategy": "ddp"}))
    assert problem.pointer == "/distributed/processes"
    wish = {"strategy": "ddp", "processes": 2}
    assert check(spec({"streaming": True}, training=STEPS, distributed=wish), hardware) == []
