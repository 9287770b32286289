"""`verify`: a user's own spec is proven on a sample of its data, and what is wrong is found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_core.equivalence.variants import conversations
from tests.trainer_core.runs import REPOSITORY
from tests.trainer_core.small_tasks import Small, preferences, questions
from trainer_core.errors import TrainerError
from trainer_core.launch import standalone
from trainer_core.spec import TrainSpec
from trainer_core.verify.checks import CHECKS, Result, verify
from trainer_core.verify.command import table
from trainer_core.verify.trials import Trial, Trials, sampled

pytestmark = pytest.mark.train


def _verify(path: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", program, "verify", str(path), *options],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _written(small: Small, name: str, task: dict[str, Any], rows: Any, **more: Any) -> Path:
    spec = small.launch(name, task, rows, **more)["spec"]
    path = small.folder / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path


@pytest.mark.slow
def test_polar_verify_proves_a_job(small: Small) -> None:
    """A job as users submit it: packed, with an adapter, dropout on; every class applies."""
    task = {"type": "sft", "packing": True, "max_length": 128}
    path = _written(small, "proven", task, conversations(40), adapter={"type": "lora", "r": 4})
    job = json.loads(path.read_text()) | {"name": "mine", "retry": {"max_attempts": 2}}
    path.write_text(json.dumps(job))
    done = _verify(path, "polar", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["passed"] is True
    assert [c["name"] for c in said["checks"]] == [check.name for check in CHECKS]
    assert {c["status"] for c in said["checks"]} == {"pass"}, said
    assert all(c["measured"] <= c["tolerance"] for c in said["checks"])
    exact = {c["name"]: c["measured"] for c in said["checks"] if c["tolerance"] == 0}
    assert exact == {"resume": 0.0, "steps": 0.0}


@pytest.mark.slow
def test_what_does_not_apply_has_a_reason(small: Small) -> None:
    """GRPO draws its answers: they are others in other batches, and one process keeps them."""
    task = {
        "type": "grpo",
        "max_length": 64,
        "max_completion_length": 8,
        "num_generations": 4,
        "rewards": [{"type": "regex", "pattern": "[aeiou]"}],
    }
    done = _verify(_written(small, "drawn", task, questions(14)), "trainer_core")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "answers are drawn batch by batch" in lines["accumulation"]
    assert "kept for further steps by one process" in lines["processes"]
    assert "task.packing is off" in lines["packing"]
    assert "there is no adapter" in lines["merging"]
    for name in ("activation checkpointing", "resume", "steps"):
        assert " pass " in lines[name]


class _Unequal(Trials):
    """Runs whose losses depend on how they are made; nothing is trained."""

    def run(self, name: str, changes: Any, *, calm: bool = False) -> Trial:
        del changes, calm
        return _Told(0, Path(name))

    def killed(self, name: str, changes: Any, step: int) -> Trial:
        raise TrainerError(f"{name}: nothing to kill at step {step} of {changes}")


class _Told(Trial):
    @property
    def losses(self) -> dict[int, float]:
        return {1: 2.0, 2: float(len(self.work.name))}

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [{"total_steps": 3}] if kind == "progress" else []


def test_what_differs_fails(small: Small) -> None:
    """Losses that differ by 1 (so do the lengths of the runs' names), and a step too few."""
    spec = TrainSpec.model_validate(small.launch("x", {"type": "dpo"}, preferences(4))["spec"])
    trials = _Unequal(standalone(spec, "x"), {}, small.folder)
    found = {r.name: (r.status, r.measured) for r in verify(trials)}
    assert found == {
        "accumulation": ("pass", 0.0),
        "processes": ("fail", 1.0),
        "packing": ("not_applicable", None),
        "activation checkpointing": ("fail", 1.0),
        "merging": ("not_applicable", None),
        "resume": ("fail", None),
        "steps": ("fail", 1.0),
    }


@pytest.mark.parametrize(
    "task",
    [
        {"type": "clm", "max_length": 32},
        {"type": "sft", "packing": True, "packing_strategy": "wrapped", "loss_on": "all"},
    ],
)
def test_texts_that_are_joined_are_not_kept_apart(small: Small, task: dict[str, Any]) -> None:
    spec = TrainSpec.model_validate(small.launch("joined", task, conversations(4))["spec"])
    trials = _Unequal(standalone(spec, "joined"), {}, small.folder)
    [packing] = [result for result in verify(trials) if result.name == "packing"]
    assert (packing.status, packing.measured) == ("not_applicable", None)
    assert "joined" in packing.reason


def test_a_sample_changes_nothing_that_is_proven(small: Small) -> None:
    """Few rows, few steps, no gate; data, model, task and optimizer as they were."""
    spec = small.launch(
        "sampled",
        {"type": "sft"},
        conversations(4),
        training={"optim": "sgd", "num_train_epochs": 9},
        publish={"gate": {"metric": "loss", "threshold": 0.0}},
    )["spec"]
    taken = sampled(standalone(TrainSpec.model_validate(spec), "sampled")).spec
    assert taken.data.train[0].num_samples == 256
    assert (taken.training.max_steps, taken.training.num_train_epochs) == (6, None)
    assert (taken.training.optim, taken.training.learning_rate) == ("sgd", 0.01)
    assert taken.publish.gate is None
    assert (taken.model, taken.task) == (
        TrainSpec.model_validate(spec).model,
        TrainSpec.model_validate(spec).task,
    )


def test_the_table_is_read_at_a_glance() -> None:
    results = [
        Result("accumulation", "pass", 2.5e-7, 1e-4, "sums"),
        Result("merging", "not_applicable", reason="no adapter"),
        Result("resume", "fail", 0.5, 0.0, "states"),
    ]
    assert table(results) == (
        "check         measured  tolerance  result  why\n"
        "accumulation  2.5e-07   0.0001     pass    sums\n"
        "merging                            —       no adapter\n"
        "resume        0.5       0          FAIL    states\n"
    )


def test_a_spec_that_cannot_run_is_refused(small: Small) -> None:
    """As by every other command: exit code 64 and the field."""
    path = small.folder / "wrong.json"
    path.write_text(json.dumps({"task": {"type": "sft"}, "model": {"name_or_path": "a/b"}}))
    done = _verify(path, "trainer_core")
    assert done.returncode == 64
    assert "data" in done.stderr
    task = {"type": "evaluation", "of": {"type": "sft"}}
    done = _verify(_written(small, "measured", task, conversations(4)), "trainer_core")
    assert done.returncode == 64
    assert done.stderr.strip()
