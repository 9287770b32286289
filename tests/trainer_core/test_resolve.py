"""Defaults for every machine and model size, compared with the committed golden files.

REGENERATE_GOLDEN=1 pytest tests/trainer_core/test_resolve.py    writes them anew
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer_core.resolve import Hardware, resolve, size_in_name
from trainer_core.spec import TrainSpec
from trainer_core.task import TASKS

GOLDEN = Path(__file__).parent / "golden"
MACHINES = {
    "cpu": Hardware(cpu_threads=2),
    "1x8": Hardware(gpus=1, gpu_memory_gb=8, bf16=True, cpu_threads=8),
    "1x24": Hardware(gpus=1, gpu_memory_gb=24, bf16=True, cpu_threads=8),
    "4x24": Hardware(gpus=4, gpu_memory_gb=24, bf16=True, cpu_threads=32),
    "8x80": Hardware(gpus=8, gpu_memory_gb=80, bf16=True, cpu_threads=96),
}
SIZES = {"135M": 135_000_000, "1B": 10**9, "7B": 7 * 10**9, "70B": 70 * 10**9}
ADAPTERS: dict[str, dict[str, str] | None] = {"full": None, "lora": {"type": "lora"}}


def spec(**blocks: Any) -> TrainSpec:
    document = {
        "task": {"type": "sft"},
        "model": {"name_or_path": "owner/model"},
        "data": {"train": [{"source": "folder", "path": "shop.jsonl"}]},
    }
    return TrainSpec.model_validate(document | blocks)


@pytest.mark.parametrize("machine", MACHINES)
def test_golden(machine: str) -> None:
    resolved = {
        f"{size} {name}": resolve(spec(adapter=adapter), MACHINES[machine], SIZES[size]).model_dump(
            mode="json"
        )
        for size in SIZES
        for name, adapter in ADAPTERS.items()
    }
    path = GOLDEN / f"resolve-{machine}.json"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(resolved, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == resolved


@pytest.mark.parametrize("task", [name for name in TASKS if name != "sft"])
def test_golden_of_other_tasks(task: str) -> None:
    """What depends on the task; the rest is as for `sft`."""
    resolved = {
        f"{machine} {size} {name}": _of_task(
            resolve(spec(task={"type": task}, adapter=adapter), hardware, SIZES[size]).spec
        )
        for machine, hardware in MACHINES.items()
        for size in SIZES
        for name, adapter in ADAPTERS.items()
    }
    path = GOLDEN / f"resolve-{task}.json"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(json.dumps(resolved, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8")) == resolved


def _of_task(resolved: TrainSpec) -> dict[str, Any]:
    return {
        "task": {
            name: value
            for name, value in resolved.task.model_dump(mode="json").items()
            if name in TASKS[resolved.task.type].open_fields(resolved)
        },
        "over_length": resolved.data.over_length,
        "precision": resolved.precision,
        **{name: getattr(resolved.training, name) for name in _DECIDED},
    }


_DECIDED = (
    "learning_rate",
    "num_train_epochs",
    "lr_scheduler_type",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
)
OPEN = {
    # What only the run, the data or the job's name can tell.
    "task.loss_on", "task.default_system", "task.chat_template", "task.pad_to_multiple_of",
    "task.eos_token", "model.revision",
    "model.subfolder", "model.token", "data.validation", "training.max_steps",
    "training.neftune_noise_alpha", "evaluation.steps", "evaluation.max_samples",
    "checkpoint.save_steps", "checkpoint.resume", "tracking.mlflow.run_name", "publish.name",
    "data.train", "adapter", "quantization", "publish.max_merge_drift",
    "checkpoint.metric_for_best_model", "checkpoint.greater_is_better",
    "checkpoint.early_stopping", "publish.hub", "publish.gate",
    "evaluation.metrics", "evaluation.generation",
}  # fmt: skip


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_nothing_else_stays_open(adapter: str) -> None:
    resolved = resolve(spec(adapter=ADAPTERS[adapter]), MACHINES["1x24"]).spec

    def walk(block: dict[str, Any], prefix: str) -> list[str]:
        found = []
        for name, value in block.items():
            path = f"{prefix}{name}"
            if isinstance(value, dict):
                found += walk(value, f"{path}.")
            elif value in (None, "auto"):
                found.append(path)
        return found

    assert set(walk(resolved.model_dump(mode="json"), "")) <= OPEN


def test_given_fields_stay_as_they_are() -> None:
    training = {
        "learning_rate": 1e-3,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 5,
        "gradient_accumulation_steps": 7,
        "data_seed": 9,
        "gradient_checkpointing": True,
    }
    given = spec(
        training=training, precision="fp32", model={"name_or_path": "a/b", "dtype": "fp32"}
    )
    for hardware in MACHINES.values():
        resolved = resolve(given, hardware, 10**9).spec
        assert resolved.training == given.training
        assert (resolved.precision, resolved.model.dtype) == ("fp32", "fp32")


def test_resolving_twice_changes_nothing() -> None:
    first = resolve(spec(adapter=ADAPTERS["lora"]), MACHINES["1x24"], 10**9).spec
    assert resolve(first, MACHINES["cpu"]).spec == first


def test_a_given_batch_keeps_the_samples_of_a_step() -> None:
    for batch, steps in ((1, 16), (4, 4), (16, 1), (32, 1)):
        training = {"per_device_train_batch_size": batch}
        resolved = resolve(spec(training=training), MACHINES["1x24"], 10**9).spec.training
        assert resolved.gradient_accumulation_steps == steps


def test_precision_follows_the_hardware() -> None:
    old = Hardware(gpus=1, gpu_memory_gb=16, bf16=False)
    lora = spec(adapter=ADAPTERS["lora"])
    assert resolve(lora, old).spec.precision == "fp16"
    assert resolve(lora, MACHINES["1x24"]).spec.precision == "bf16"
    assert resolve(lora, MACHINES["cpu"]).spec.precision == "fp32"


def test_a11_auto_merges_what_servers_of_adapters_refuse() -> None:
    """vLLM loads low-rank factors alone; a classifier's adapter is nothing that it serves."""
    whole = {"type": "lora", "modules_to_save": ["lm_head"]}
    tokens = {"name_or_path": "owner/model", "add_tokens": ["<tool>"]}
    classifier = {"task": {"type": "text_classification"}}

    def merge(**blocks: Any) -> tuple[str, list[str]]:
        found = resolve(spec(**blocks), MACHINES["cpu"])
        return found.spec.publish.merge, [w.code for w in found.warnings]

    assert merge(adapter=ADAPTERS["lora"]) == ("never", [])
    assert merge(adapter=whole) == ("always", [])
    assert merge(adapter=ADAPTERS["lora"], model=tokens) == ("always", [])
    assert merge(model=tokens) == ("never", [])
    assert merge(adapter={"type": "lora", "modules_to_save": ["score"]}, **classifier) == (
        "never",
        [],
    )
    never = {"publish": {"merge": "never"}}
    assert merge(adapter=whole, **never) == ("never", ["adapter_not_served"])
    [warning] = resolve(spec(adapter=whole, **never), MACHINES["cpu"]).warnings
    assert "it holds lm_head whole (adapter.modules_to_save)" in warning.message


def test_evaluation_happens_only_with_validation_rows() -> None:
    source = {"source": "folder", "path": "shop.jsonl"}
    data = {"train": [source], "validation": {"split_ratio": 0.1}}
    assert resolve(spec(), MACHINES["cpu"]).spec.evaluation.strategy == "no"
    assert resolve(spec(data=data), MACHINES["cpu"]).spec.evaluation.strategy == "epoch"
    steps = resolve(spec(data=data, evaluation={"steps": 5}), MACHINES["cpu"]).spec.evaluation
    assert (steps.strategy, steps.steps) == ("steps", 5)
    useless = resolve(spec(evaluation={"strategy": "epoch"}), MACHINES["cpu"])
    assert [w.code for w in useless.warnings] == ["nothing_to_evaluate"]
    assert useless.spec.evaluation.strategy == "no"


@pytest.mark.parametrize("said", [{"steps": 5}, {"max_samples": 5}, {"steps": 5, "max_samples": 7}])
def test_what_is_said_of_evaluations_that_are_not_there_is_told(said: dict[str, int]) -> None:
    [warning] = resolve(spec(evaluation=said), MACHINES["cpu"]).warnings
    assert warning.code == "nothing_to_evaluate"
    named = " and ".join(f"evaluation.{name} is {value}" for name, value in said.items())
    assert warning.message == f"{named}, but without data.validation nothing is evaluated"
    measured = spec(evaluation={"max_samples": 5}, task={"type": "evaluation"})
    assert resolve(measured, MACHINES["cpu"]).warnings == []


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 135_000_000),
        ("mistralai/Mixtral-8x7B-v0.1", 56 * 10**9),
        ("Qwen/Qwen2.5-0.5B", 500_000_000),
        ("/models/llama3_8b/", 8 * 10**9),
        ("owner/foo-32b-4bit", 32 * 10**9),
        ("gpt2", None),
    ],
)
def test_size_in_name(name: str, size: int | None) -> None:
    assert size_in_name(name) == size


def test_loads_without_heavy_imports() -> None:
    code = (
        "import sys, trainer_core.resolve, trainer_core.problems, trainer_core.capabilities\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
