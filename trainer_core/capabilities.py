"""What can be combined: task × backend × adapter × quantization × strategy, and rules with reasons.

`check` is asked before a job is accepted and before a run begins: a spec that it passes fails
later only because of its data, its model or its machine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainer_core.adapter_rules import ADAPTER_RULES
from trainer_core.data.formats import format_problem, mapping_problem
from trainer_core.data_rules import DATA_RULES, streaming_problems
from trainer_core.evaluation_rules import EVALUATION_RULES
from trainer_core.hardware import Hardware
from trainer_core.hub_rules import hub_problems
from trainer_core.problems import Problem
from trainer_core.publish.plan import usual_merge
from trainer_core.spec import DataSource, Distributed, EvaluationTask, SplitRatio, TrainSpec
from trainer_core.spread import spread_problems
from trainer_core.task import TASKS, evaluated, task_of
from trainer_core.task_facts import TaskFacts
from trainer_core.task_rules import dotted, sources_with_pointers


@dataclass(frozen=True)
class Capability:
    """One combination; `reason` says why it is refused, None where it works."""

    task: str
    backend: str
    adapter: str
    quantization: str
    strategy: str
    reason: str | None = None


@dataclass(frozen=True)
class NeedsGpu:
    """One value of a field that a CPU cannot follow: why, and what to use instead there."""

    pointer: str
    value: str
    why: str
    instead: str


QUANTIZATIONS = ("none", "8 bits", "4 bits")
STRATEGIES = ("none", "ddp")
NEEDS_GPU: tuple[NeedsGpu, ...] = (
    NeedsGpu("/precision", "fp16", "which needs a GPU", "'auto' or 'fp32' on a CPU"),
    NeedsGpu("/model/dtype", "fp16", "which needs a GPU", "'auto' or 'fp32' on a CPU"),
    NeedsGpu("/model/attn_implementation", "flash_attention_2", "which needs a GPU", "'auto'"),
    NeedsGpu(
        "/adapter/init_lora_weights",
        "loftq",
        "which PEFT computes on a GPU alone",
        "true or 'gaussian' on a CPU",
    ),
    NeedsGpu("/quantization/compute_dtype", "fp16", "which needs a GPU", "'auto' on a CPU"),
)
"""Everything that is written for a GPU and refused on a CPU."""


def _refusal(facts: TaskFacts, adapter: str, quantization: str, strategy: str) -> str | None:
    """Why a task type does not go with an adapter on such a base, so spread; None: it does."""
    if (reason := facts.adapters[adapter]) is not None:
        return reason
    if quantization != "none" and not facts.trains:
        return "an evaluation measures the model as it is: leave quantization out"
    if quantization != "none" and adapter in _OWN_WEIGHTS:
        return (
            "quantized weights cannot be trained: add an adapter that is trained beside them, such"
            " as {type: lora}, or leave quantization out"
        )
    return facts.ddp if strategy == "ddp" else None


_OWN_WEIGHTS = ("none", "freeze")
TABLE: tuple[Capability, ...] = tuple(
    Capability(task, "hf", adapter, quantization, strategy, reason)
    for task, module in TASKS.items()
    for adapter in module.FACTS.adapters
    for quantization in QUANTIZATIONS
    for strategy in STRATEGIES
    for reason in [_refusal(module.FACTS, adapter, quantization, strategy)]
)
"""One row for each combination of a task type, from the task types' own facts."""


def check(spec: TrainSpec, hardware: Hardware | None = None) -> list[Problem]:
    """Everything about a spec that cannot work, each with its field and the way out.

    With `hardware` also what cannot work there; without, only what works nowhere.
    """
    if isinstance(spec.task, EvaluationTask):
        rules = (_combination, spread_problems, streaming_problems, _task, _of)
        return [problem for rule in rules for problem in rule(spec, hardware)]
    return [problem for rule in RULES for problem in rule(spec, hardware)]


def _of(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """What cannot work about the evaluated task; there are always rows that are measured."""
    data = spec.data
    if data.validation is None:
        data = data.model_copy(update={"validation": SplitRatio(split_ratio=0.5)})
    data = data.model_copy(update={"streaming": False})  # refused already
    own = {"data": data, "adapter": None, "quantization": None, "distributed": Distributed()}
    inner = evaluated(spec).model_copy(update=own)
    for problem in check(inner, hardware):
        pointer = problem.pointer
        if pointer.startswith("/task/"):
            pointer = pointer.replace("/task/", "/task/of/", 1)
        message = problem.message.replace("task.", "task.of.")
        yield problem.model_copy(update={"pointer": pointer, "message": message})


def combination(spec: TrainSpec) -> Capability | None:
    """The table's row for a spec; `auto` means the first row that fits."""
    wanted = (spec.task.type, *_adapter_and_base(spec))
    for row in TABLE:
        backend = spec.backend in ("auto", row.backend)
        strategy = spec.distributed.strategy in ("auto", row.strategy)
        fits = (row.task, row.adapter, row.quantization) == wanted
        if fits and backend and strategy:
            return row
    return None


def _adapter_and_base(spec: TrainSpec) -> tuple[str, str]:
    adapter = "none" if spec.adapter is None else spec.adapter.type
    return adapter, "none" if spec.quantization is None else f"{spec.quantization.bits} bits"


def _combination(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A combination that the table refuses, or that it does not have."""
    row = combination(spec)
    if row is None or row.reason is not None:
        adapter, base = _adapter_and_base(spec)
        adapter += "" if base == "none" else f" × base in {base}"
        wanted = f"{spec.task.type} × {spec.backend} × {adapter} × {spec.distributed.strategy}"
        reason = row.reason if row is not None else "there is no such combination"
        yield Problem(pointer="/task/type", message=f"{wanted} cannot work: {reason}")


def _precision(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """`bf16` as `precision` or `model.dtype` on a GPU without it: emulation would be slow."""
    if hardware is None or not hardware.gpus or hardware.bf16:
        return
    fields = {"precision": spec.precision, "model.dtype": spec.model.dtype}
    for name, value in fields.items():
        pointer = "/" + name.replace(".", "/")
        if value == "bf16":
            text = f"{name} is 'bf16', which this GPU does not have: use 'auto' or 'fp16'"
            yield Problem(pointer=pointer, message=text, value="'bf16'")


def _gpu(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """What only a GPU can do (the table above), where there is none."""
    if hardware is None or hardware.gpus:
        return
    for need in NEEDS_GPU:
        value: Any = spec
        for name in need.pointer.split("/")[1:]:
            value = getattr(value, name, None)
        if value == need.value:
            text = f"{dotted(need.pointer)} is '{value}', {need.why}: use {need.instead}"
            yield Problem(pointer=need.pointer, message=text, value=repr(value))


def _mixed_fp16(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Weights in fp16 that are trained under fp16: their gradients cannot be unscaled."""
    if spec.precision == "fp16" and spec.adapter is None and spec.model.dtype == "fp16":
        text = (
            "model.dtype is 'fp16', but trained weights must be fp32 under fp16 precision: use "
            "'auto' or 'fp32'"
        )
        yield Problem(pointer="/model/dtype", message=text, value="'fp16'")


def _attention(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """`flash_attention_2` in fp32, which its kernels do not compute in."""
    if hardware is not None and not hardware.gpus:
        return  # refused already
    if spec.model.attn_implementation == "flash_attention_2" and spec.precision == "fp32":
        text = (
            "model.attn_implementation is 'flash_attention_2', which needs precision bf16 or fp16:"
            " use 'auto'"
        )
        yield Problem(
            pointer="/model/attn_implementation", message=text, value="'flash_attention_2'"
        )


def _merge(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Merging without an adapter, and a limit of its drift where nothing is merged."""
    if not spec.adapts and spec.publish.merge == "always":
        text = "publish.merge is 'always', but without an adapter nothing is merged: leave it out"
        yield Problem(pointer="/publish/merge", message=text, value="'always'")
    drift = spec.publish.max_merge_drift
    merges = spec.publish.merge == "always"
    if spec.publish.merge == "auto":
        merges = usual_merge(spec) == "always"
    if drift is not None and not merges:
        text = "publish.max_merge_drift has no effect without publish.merge 'always': leave it out"
        yield Problem(pointer="/publish/max_merge_drift", message=text, value=repr(drift))


def _model(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """A `model` named in a way that its `source` does not know: a path as an id of the hub, an
    address that is none, `revision` or `token` where nobody asks for them."""
    model = spec.model
    if model.source not in ("hub", "registry") and model.revision is not None:
        yield _no_effect("/model", "revision", model.source, model.revision)
    if model.source not in ("hub", "s3") and model.token is not None:
        yield _no_effect("/model", "token", model.source, None)
    name = model.name_or_path
    if model.source == "hub" and (name.startswith(("/", "~", ".")) or ".." in name):
        text = (
            f"model.name_or_path is '{name}', which is a path, but model.source is 'hub': use "
            "source 'folder', or a repository id such as 'owner/name'"
        )
        yield Problem(pointer="/model/name_or_path", message=text, value=repr(name))
    if model.source == "s3":
        yield from _address("/model/name_or_path", name)


def _sources(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Sources with fields that their kind of source does not have, with a format that the task does
    not take, or with `columns` that the format does not have; an empty list of sources."""
    for pointer, source in sources_with_pointers(spec):
        yield from _source(pointer, source, spec)
    if spec.data.validation == []:
        text = "data.validation is an empty list: add a source, or leave it out"
        yield Problem(pointer="/data/validation", message=text, value="a list")


def _source(pointer: str, source: DataSource, spec: TrainSpec) -> Iterator[Problem]:
    for name in _USELESS[source.source]:
        value = getattr(source, name)
        if value is not None:
            shown = None if name == "token" else value
            yield _no_effect(pointer, name, source.source, shown)
    if source.source == "s3":
        yield from _address(f"{pointer}/path", source.path)
    accepted = task_of(spec).FACTS.formats
    if text := format_problem(source, dotted(pointer), accepted):
        yield Problem(pointer=f"{pointer}/format", message=text, value=repr(source.format))
    elif text := mapping_problem(source, dotted(pointer), accepted):
        yield Problem(pointer=f"{pointer}/columns", message=text, value="an object")


def _address(pointer: str, uri: str) -> Iterator[Problem]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket or not key:
        text = f"{dotted(pointer)} is '{uri}', which is not of the form s3://bucket/key"
        yield Problem(pointer=pointer, message=text, value=repr(uri))


def _task(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """What the task itself refuses (its section above), and what its rows cannot follow of
    `data.over_length`."""
    yield from task_of(spec).problems(spec, hardware)
    facts, policy = task_of(spec).FACTS, spec.data.over_length
    if not facts.trains:
        return
    allowed = facts.over_length
    if policy not in allowed:
        text = (
            f"data.over_length is '{policy}', which task '{spec.task.type}' cannot follow: use one "
            f"of {', '.join(allowed)}"
        )
        yield Problem(pointer="/data/over_length", message=text, value=repr(policy))
    elif policy not in _AS_JOINED and (where := facts.joins(spec)):
        text = (
            f"data.over_length is '{policy}', which has no effect on texts that are joined and cut"
            f" into full rows, as {where}, or leave this out"
        )
        yield Problem(pointer="/data/over_length", message=text, value=repr(policy))


def _no_effect(pointer: str, name: str, source: str, value: str | None) -> Problem:
    text = f"{dotted(pointer)}.{name} has no effect with source '{source}': leave it out"
    return Problem(
        pointer=f"{pointer}/{name}", message=text, value=None if value is None else repr(value)
    )


_AS_JOINED = ("error", "split")
"""What nobody has said, and what happens to texts that are joined."""
_USELESS: dict[str, tuple[str, ...]] = {
    "hub": (),
    "s3": ("subset", "split", "revision"),
    "upload": ("subset", "split", "revision", "token"),
    "folder": ("subset", "split", "revision", "token"),
    "dataset": ("subset", "split"),  # it may lie in a store of its owner's
}
RULES: tuple[Callable[[TrainSpec, Hardware | None], Iterator[Problem]], ...] = (
    _combination,
    spread_problems,
    _precision,
    _gpu,
    *ADAPTER_RULES,
    *EVALUATION_RULES,
    _mixed_fp16,
    _attention,
    _merge,
    hub_problems,
    _model,
    _sources,
    *DATA_RULES,
    _task,
)
