"""Measuring a base or a published model with another task's own trainer; nothing is trained."""

from collections.abc import Iterator
from typing import Any

from trainer_core.context import TrainContext
from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import EvaluationTask, ModelRef, TrainSpec
from trainer_core.task_facts import ADAPTERS, CardText, Defaults, ModelKind, TaskFacts, block_of
from trainer_core.task_rules import dotted, further_model_problems

_NOTHING = "an evaluation measures the model as it is: leave adapter out"
FACTS = TaskFacts(
    # Rows, formats, lengths and the kind of model are those of `task.of`.
    formats=(),
    rows="",
    model=ModelKind("", "a model of the task that is evaluated", None),
    defaults=Defaults(learning_rate=0.0, adapter_learning_rate=0.0, max_length=0),
    card=CardText(pipeline_tag="", made_by="", results={}),
    adapters={**dict.fromkeys(ADAPTERS, _NOTHING), "none": None},
    ddp="an evaluation runs in one process",
    trains=False,
)
_USED = ("per_device_eval_batch_size", "seed", "data_seed")
_TRAINING = "has no effect, because an evaluation trains nothing: leave it out"
_PUBLISHING = "has no effect, because an evaluation publishes a report and no model: leave it out"


def open_fields(spec: TrainSpec) -> dict[str, Any]:  # noqa: ARG001 - the protocol's
    """None: `resolve` fills those of `task.of`."""
    return {}


def problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:  # noqa: ARG001 - the protocol's
    """Fields of training and publishing, and a baseline from where it cannot come."""
    kept = {"/publish/registry"}  # `resolve` sets it to false
    for block, reason in (("training", _TRAINING), ("checkpoint", _TRAINING)):
        yield from _useless(spec, block, reason, kept | {f"/training/{name}" for name in _USED})
    yield from _useless(spec, "publish", _PUBLISHING, kept)
    for name in ("strategy", "steps"):
        value = getattr(spec.evaluation, name)
        if value not in (None, "auto", "epoch"):  # the last is what `resolve` fills in
            text = f"evaluation.{name} has no effect, because there is one evaluation: leave it out"
            yield Problem(pointer=f"/evaluation/{name}", message=text, value=repr(value))
    if spec.evaluation.compare_base:
        text = (
            "evaluation.compare_base has no effect, because nothing is trained: name the other"
            " model in task.baseline"
        )
        yield Problem(pointer="/evaluation/compare_base", message=text, value="true")
    for name in ("add_tokens", "add_special_tokens"):
        if getattr(spec.model, name):
            text = (
                f"model.{name} would begin at random and stay so, because an evaluation trains"
                " nothing: leave it out"
            )
            yield Problem(pointer=f"/model/{name}", message=text, value="a list")
    baseline = block_of(spec, EvaluationTask).baseline
    if baseline is not None:
        yield from _baseline_problems(baseline)


def _baseline_problems(baseline: ModelRef) -> Iterator[Problem]:
    for field, message in further_model_problems("baseline", baseline):
        yield Problem(pointer=f"/task/{field}", message=f"task.{dotted(field)} {message}")
    for name in ("dtype", "attn_implementation"):
        if (value := getattr(baseline, name)) != "auto":
            text = (
                f"task.baseline.{name} has no effect, because both models are measured alike: "
                f"set model.{name}"
            )
            yield Problem(pointer=f"/task/baseline/{name}", message=text, value=repr(value))


def _useless(spec: TrainSpec, block: str, reason: str, kept: set[str]) -> Iterator[Problem]:
    given = getattr(spec, block)
    for name, field in type(given).model_fields.items():
        pointer = f"/{block}/{name}"
        default = field.get_default(call_default_factory=True)
        if pointer not in kept and getattr(given, name) != default:
            yield Problem(pointer=pointer, message=f"{block}.{name} {reason}")


def build_trainer(context: TrainContext) -> Any:  # noqa: ARG001 - the protocol's
    """Never asked for: the trainer is that of `task.of`."""
    raise TypeError("an evaluation has no trainer of its own")
