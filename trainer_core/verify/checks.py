"""The checks: two ways of computing the same, and how far apart they may be.

The same classes, over all task types and tiny models, are `tests/trainer_core/equivalence`.
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trainer_core.errors import TrainerError
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of
from trainer_core.verify.packed import isolation
from trainer_core.verify.trials import SAVED_EVERY, STEPS, Trial, Trials
from trainer_core.words import say

Status = Literal["pass", "fail", "not_applicable"]
_FIRST_KILL = SAVED_EVERY + 1
_TOLERANCE_16_BIT = 3e-2
"""Of a loss: bf16 has 8 bits, and sums of thousands of products are rounded at each."""
_MERGE_LIMIT, _MERGE_LIMIT_16_BIT = 1e-3, 5e-2


@dataclass(frozen=True)
class Result:
    """One check: what was measured against what is allowed, and why it was not measured."""

    name: str
    status: Status
    measured: float | None = None
    tolerance: float | None = None
    reason: str | None = None


class NotApplicable(Exception):
    """A check that means nothing for a spec; the message says why."""


@dataclass(frozen=True)
class Check:
    """`measure` returns what was measured; `tolerance` is for fp32, its `source` for people."""

    name: str
    what: str
    tolerance: float
    tolerance_16_bit: float
    source: str
    measure: Callable[[Trials], float]


def verify(trials: Trials) -> Iterator[Result]:
    """Every check in order; a run that fails makes its checks fail."""
    for check in CHECKS:
        say(f"{check.name}: {check.what} …")
        limit = check.tolerance if is_fp32(trials) else check.tolerance_16_bit
        try:
            measured = check.measure(trials)
        except NotApplicable as reason:
            yield Result(check.name, "not_applicable", reason=str(reason))
        except TrainerError as error:
            yield Result(check.name, "fail", tolerance=limit, reason=error.message)
        else:
            holds = measured <= limit  # false where it is no number
            yield Result(check.name, "pass" if holds else "fail", measured, limit, check.source)


def is_fp32(trials: Trials) -> bool:
    """Whether the spec computes in fp32: what it says, and on a CPU where it says nothing."""
    spec = trials.launch.spec
    if spec.precision == "auto":
        return not trials.launch.devices
    return spec.precision == "fp32"


# ---- the runs that checks compare ----


def _plain(trials: Trials) -> Trial:
    """As the spec says, dropout included; merged where there is something to merge."""
    return trials.run("plain", _plain_changes(trials.launch.spec))


def _plain_changes(spec: TrainSpec) -> dict[str, dict[str, Any]]:
    batch, accumulated = _step(spec)
    changes: dict[str, dict[str, Any]] = {"training": _training(batch, accumulated)}
    if _merges(spec):
        changes["publish"] = {"merge": "always"}
    return changes


def _training(batch: int, accumulated: int) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": batch,
        "per_device_eval_batch_size": batch,
        "gradient_accumulation_steps": accumulated,
    }


def _step(spec: TrainSpec) -> tuple[int, int]:
    """Rows of a batch and batches of a step."""
    facts = task_of(spec).FACTS
    if (group := facts.step_multiple(spec)) > 1:
        return group, 1
    return (2, 2) if facts.defaults.accumulates else (4, 1)


def _calm(trials: Trials, batch: int, accumulated: int, strategy: str = "none") -> Trial:
    """A run that draws no random number, in batches of so many rows."""
    changes = {
        "training": _training(batch, accumulated),
        "distributed": {"strategy": strategy, "processes": 1 if strategy == "none" else 2},
    }
    return trials.run(f"{strategy}-{batch}x{accumulated}", changes, calm=True)


def _farthest(one: Trial, other: Trial) -> float:
    """The largest difference between the losses of a step."""
    if one.losses.keys() != other.losses.keys():
        raise TrainerError(f"{len(one.losses)} steps against {len(other.losses)}")
    return max(abs(one.losses[step] - other.losses[step]) for step in one.losses)


# ---- the checks ----


def _accumulation(trials: Trials) -> float:
    spec = trials.launch.spec
    facts = task_of(spec).FACTS
    if facts.step_multiple(spec) > 1:
        raise NotApplicable("answers are drawn batch by batch: other batches give other answers")
    if not facts.defaults.accumulates:
        raise NotApplicable("losses compare the rows of a batch: small ones are no large one")
    return _farthest(_calm(trials, 4, 1), _calm(trials, 1, 4))


def _processes(trials: Trials) -> float:
    if (reason := task_of(trials.launch.spec).FACTS.ddp) is not None:
        raise NotApplicable(reason)
    if len(trials.launch.devices) == 1:
        raise NotApplicable("two processes need two GPUs, and there is one")
    return _farthest(_calm(trials, 1, 4), _calm(trials, 1, 2, "ddp"))


def _checkpointing(trials: Trials) -> float:
    changes = _plain_changes(trials.launch.spec)
    runs = []
    for on in (False, True):
        changes["training"] = changes["training"] | {"gradient_checkpointing": on}
        runs.append(trials.run(f"checkpointing-{'on' if on else 'off'}", changes))
    return _farthest(*runs)


def _packing(trials: Trials) -> float:
    if not trials.launch.spec.task.is_packed:
        raise NotApplicable("task.packing is off")
    task = trials.launch.spec.task
    if "wrapped" in (getattr(task, name, None) for name in ("packing", "packing_strategy")):
        raise NotApplicable("texts that are joined and cut into full rows see each other, as meant")
    return isolation(trials, _plain(trials))


def _merging(trials: Trials) -> float:
    spec = trials.launch.spec
    if not _merges(spec):
        raise NotApplicable("there is no adapter that could be merged into whole weights")
    plain = _plain(trials)
    lock = json.loads((plain.work / "model" / "run_lock.json").read_text())
    if "merge" not in lock:
        raise TrainerError("; ".join(w["message"] for w in plain.of("warning")) or "not merged")
    return float(lock["merge"]["drift"])


def _merges(spec: TrainSpec) -> bool:
    return spec.adapts and task_of(spec).FACTS.model.framework == "transformers"


def _resume(trials: Trials) -> float:
    whole = _plain(trials)
    changes = _plain_changes(trials.launch.spec)
    step = _FIRST_KILL + secrets.randbelow(STEPS - _FIRST_KILL)
    killed = trials.killed("killed", changes, step)
    saved = (step - 1) // SAVED_EVERY * SAVED_EVERY
    resumed = trials.resumed("resumed", changes, killed.checkpoint(saved))
    together = killed.losses | resumed.losses
    if together.keys() != whole.losses.keys():
        raise TrainerError(f"killed at step {step}, it did not go on from step {saved}")
    if resumed.weights() != whole.weights():
        raise TrainerError(f"killed at step {step} and resumed, the published weights differ")
    return max(abs(together[number] - loss) for number, loss in whole.losses.items())


def _steps(trials: Trials) -> float:
    plain = _plain(trials)
    planned = {p["total_steps"] for p in plain.of("progress")}
    return float(max(abs(steps - max(plain.losses)) for steps in planned))


CHECKS: tuple[Check, ...] = (
    Check(
        "accumulation",
        "one batch of 4 rows and four of 1 give the same losses",
        1e-4,
        _TOLERANCE_16_BIT,
        "other shapes are added up in another order",
        _accumulation,
    ),
    Check(
        "processes",
        "two processes and one give the same losses",
        1e-5,
        _TOLERANCE_16_BIT,
        "two halves are rounded elsewhere than one sum",
        _processes,
    ),
    Check(
        "packing",
        "a sample in a packed row and alone give the same logits",
        1e-3,
        5e-2,
        "rows of other lengths are added up in another order",
        _packing,
    ),
    Check(
        "activation checkpointing",
        "recomputed activations and kept ones give the same losses",
        1e-6,
        _TOLERANCE_16_BIT,
        "the same operations on the same numbers",
        _checkpointing,
    ),
    Check(
        "merging",
        "the adapter beside its base and merged into it give the same logits",
        _MERGE_LIMIT,
        _MERGE_LIMIT_16_BIT,
        "of the largest logit: weights are rounded once more",
        _merging,
    ),
    Check(
        "resume",
        "killed at a random step and resumed gives the losses of the undisturbed run",
        0.0,
        0.0,
        "every state is restored",
        _resume,
    ),
    Check("steps", "planned steps are run", 0.0, 0.0, "steps are counted", _steps),
)
