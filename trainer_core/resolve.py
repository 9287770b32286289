"""Zero configuration: fills every field that a spec leaves out, from hardware and model size.

Pure and quick: no file, no network, no heavy import. The numbers are rules of thumb on the safe
side; whatever the spec says itself is never changed.
"""

import re
from math import gcd
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from trainer_core.hardware import Hardware
from trainer_core.hub_rules import pushed_at_the_end_alone
from trainer_core.measured import greater_is_better
from trainer_core.memory import memory_need
from trainer_core.publish.plan import not_served, usual_merge
from trainer_core.spec import (
    Checkpoint,
    Distributed,
    EvaluationTask,
    Quantization,
    TrainSpec,
)
from trainer_core.spread import processes_of
from trainer_core.step_rows import usual_rows
from trainer_core.task import evaluated, task_of

__all__ = ["Hardware", "Resolved", "Warning", "resolve", "size_in_name", "usual_learning_rate"]

Block = TypeVar("Block", bound=BaseModel)
_LARGEST_BATCH_CPU = 8
_UNKNOWN_GPU_GB = 16.0
# Of LoRA's learning rate: factors and vectors move less for the same step than low-rank products.
_RATES = {"lora": 1.0, "adalora": 2.5, "ia3": 15.0, "vera": 20.0, "layernorm": 5.0}
_UNKNOWN_PARAMETERS = 7_000_000_000
_USABLE = 0.9  # of a GPU's memory; the rest is CUDA's own and fragmentation
_NO_ROWS = "nothing_to_evaluate"
_COMFORTABLE_BATCH = 2  # below it, recomputing activations is faster than tiny batches
_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.I)


class Warning(BaseModel):  # noqa: A001 - the word users see
    """Something that will work, but perhaps not as the user expects."""

    code: str
    message: str


class Resolved(BaseModel):
    """A spec with every default filled in, and what its owner should know."""

    spec: TrainSpec
    warnings: list[Warning] = Field(default_factory=list)


def resolve(spec: TrainSpec, hardware: Hardware, model_parameters: int | None = None) -> Resolved:
    """Fill every field that is None or `auto`; fields that were given stay as they are.

    `model_parameters` counts the model's parameters; None: read from its name, such as `7B`.
    What depends on the rows (`task.loss_on`, the format, the length of an epoch with
    `save_steps: auto`) stays open: the run knows.
    """
    if isinstance(spec.task, EvaluationTask):
        alone = {"distributed": Distributed(strategy="none")}
        inner = evaluated(spec).model_copy(update=alone)
        return _evaluation_of(spec, spec.task, resolve(inner, hardware, model_parameters))
    parameters = model_parameters or size_in_name(spec.model.name_or_path)
    filled = _fixed(spec, hardware)
    warnings = _warnings(spec, hardware)
    plan = _Plan(filled, hardware, parameters or _UNKNOWN_PARAMETERS)
    training = filled.training.model_copy(update=plan.fields())
    if hardware.gpus and (tight := plan.shortage()):
        warnings.append(Warning(code="memory_tight", message=tight))
    # Validated once more: what was computed must be as legal as what is given.
    blocks = {
        "training": _legal(training),
        "evaluation": _legal(filled.evaluation),
        "checkpoint": _legal(_checkpoint(filled)),
    }
    return Resolved(spec=filled.model_copy(update=blocks), warnings=warnings)


def _evaluation_of(spec: TrainSpec, task: EvaluationTask, inner: Resolved) -> Resolved:
    """The evaluated task's defaults, but for those of a training; weights in the run's precision.

    In 16 bits only where they are of that range: fp16 holds no trained weights.
    """
    filled = inner.spec
    batch = {"per_device_eval_batch_size": filled.training.per_device_eval_batch_size}
    dtype = "bf16" if filled.precision == "bf16" else "fp32"
    blocks = {
        "task": task.model_copy(update={"of": filled.task}),
        "model": filled.model.model_copy(update={"dtype": dtype})
        if spec.model.dtype == "auto"
        else filled.model,
        "training": spec.training.model_copy(update=batch),
        "evaluation": spec.evaluation.model_copy(update={"strategy": "epoch"}),
        "checkpoint": spec.checkpoint,
        "publish": spec.publish.model_copy(update={"registry": False}),
    }
    # Without validation rows all rows are measured.
    warnings = [warning for warning in inner.warnings if warning.code != _NO_ROWS]
    return Resolved(spec=filled.model_copy(update=blocks), warnings=warnings)


def _legal(block: Block) -> Block:
    return type(block).model_validate(block.model_dump())


def size_in_name(name: str) -> int | None:
    """Parameters as a model's name tells them: `Qwen2.5-7B` → 7·10⁹; None where it does not."""
    found = _SIZE_IN_NAME.search(name.rstrip("/").rpartition("/")[2].replace("_", "-"))
    if found is None:
        return None
    experts, size, unit = found.groups()
    return int(float(size) * int(experts or 1) * (1e9 if unit.lower() == "b" else 1e6))


def _fixed(spec: TrainSpec, hardware: Hardware) -> TrainSpec:
    """Fill what does not depend on sizes."""
    task = task_of(spec)
    defaults = task.FACTS.defaults
    precision = spec.precision
    if precision == "auto":
        precision = "fp32" if not hardware.gpus else "bf16" if hardware.bf16 else "fp16"
    training = _fill(
        spec.training,
        learning_rate=usual_learning_rate(spec),
        num_train_epochs=defaults.num_train_epochs,
        data_seed=spec.training.seed,
    )
    training = _unless_said(training, lr_scheduler_type=defaults.lr_scheduler_type)
    model = _fill(
        spec.model,
        dtype=precision if spec.adapts else "fp32",
        attn_implementation="sdpa",
    )
    return spec.model_copy(
        update={
            "task": _legal(_fill(spec.task, **task.open_fields(spec))),
            "model": model,
            "training": training,
            "data": _unless_said(spec.data, over_length=defaults.over_length),
            "precision": precision,
            "backend": "hf",
            "distributed": _distributed(spec, hardware),
            "evaluation": spec.evaluation.model_copy(update=_evaluation(spec)),
            "publish": _fill(spec.publish, merge=usual_merge(spec)),
            "quantization": _quantization(spec, precision),
        }
    )


def _distributed(spec: TrainSpec, hardware: Hardware) -> Distributed:
    count = processes_of(spec, hardware.gpus)
    return _fill(spec.distributed, strategy="ddp" if count > 1 else "none", processes=count)


def _quantization(spec: TrainSpec, precision: str) -> Quantization | None:
    wanted = spec.quantization
    if wanted is None or wanted.bits == 8:
        return wanted
    return _fill(wanted, compute_dtype=precision)


def usual_learning_rate(spec: TrainSpec) -> float:
    """The learning rate of a spec that leaves it open."""
    facts = task_of(spec).FACTS
    if facts.model.from_config(spec) is not None:
        return facts.defaults.scratch_learning_rate
    if spec.adapter is None or not spec.adapts:
        return facts.defaults.learning_rate
    return facts.defaults.adapter_learning_rate * _RATES[spec.adapter.type]


def _fill(block: Block, **defaults: Any) -> Block:
    """The block with `defaults` where it is open."""
    is_open = {name: getattr(block, name) in (None, "auto") for name in defaults}
    return block.model_copy(update={n: v for n, v in defaults.items() if is_open[n]})


def _unless_said(block: Block, **defaults: Any) -> Block:
    """The block with `defaults` where the spec says nothing: for fields that are never open."""
    return block.model_copy(
        update={n: v for n, v in defaults.items() if n not in block.model_fields_set}
    )


def _evaluation(spec: TrainSpec) -> dict[str, Any]:
    given = spec.evaluation
    if spec.data.validation is None:
        return {"strategy": "no", "steps": None}
    if given.strategy == "auto":
        strategy = "epoch" if given.steps is None else "steps"
        return {"strategy": strategy, "compare_base": _compares(spec)}
    return {"compare_base": _compares(spec)}


def _compares(spec: TrainSpec) -> bool:
    """A gain can be known only where the model was measured before."""
    gate = spec.publish.gate
    return spec.evaluation.compare_base or (gate is not None and gate.min_improvement is not None)


def _checkpoint(spec: TrainSpec) -> Checkpoint:
    wish = spec.checkpoint
    if not wish.load_best_model_at_end and wish.early_stopping is None:
        return wish
    wish = _fill(wish, metric_for_best_model="loss")
    return _fill(wish, greater_is_better=greater_is_better(wish.metric_for_best_model or "loss"))


def _warnings(spec: TrainSpec, hardware: Hardware) -> list[Warning]:
    found = []
    if (unused := _unused_gpus(spec, hardware)) is not None:
        found.append(Warning(code="gpus_unused", message=unused))
    if not hardware.gpus and spec.precision == "bf16":
        text = "precision is 'bf16', which is slow on most CPUs: 'auto' would use fp32"
        found.append(Warning(code="slow_precision", message=text))
    if (unheard := _unheard(spec)) is not None:
        found.append(Warning(code=_NO_ROWS, message=unheard))
    if spec.publish.merge == "never" and (reason := not_served(spec)) is not None:
        text = (
            "publish.merge is 'never', but servers of adapters such as vLLM refuse this one:"
            f" {reason}; 'auto' publishes it merged into its base"
        )
        found.append(Warning(code="adapter_not_served", message=text))
    if (late := pushed_at_the_end_alone(spec)) is not None:
        found.append(Warning(code="pushed_at_the_end", message=late))
    if spec.training.max_steps is not None and spec.training.num_train_epochs is not None:
        text = "training.max_steps wins over training.num_train_epochs"
        found.append(Warning(code="max_steps_wins", message=text))
    return found


def _unheard(spec: TrainSpec) -> str | None:
    """What is said of evaluations that there are not; None where nothing is, or rows are there."""
    wish = spec.evaluation
    said = {"strategy": wish.strategy, "steps": wish.steps, "max_samples": wish.max_samples}
    named = [f"evaluation.{n} is {v!r}" for n, v in said.items() if v not in (None, "auto", "no")]
    if spec.data.validation is not None or not named:
        return None
    return f"{' and '.join(named)}, but without data.validation nothing is evaluated"


def _unused_gpus(spec: TrainSpec, hardware: Hardware) -> str | None:
    count = processes_of(spec, hardware.gpus)
    if hardware.gpus <= count:
        return None
    text = f"{hardware.gpus} GPUs are there, but this run uses {count} of them"
    reason = task_of(spec).FACTS.ddp
    if reason is None and spec.data.streaming and spec.distributed.processes is None:
        reason = "with data.streaming it takes as many as distributed.processes says"
    return text if reason is None else f"{text}: {reason}"


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


class _Plan:
    """Batch, accumulation and gradient checkpointing for one machine."""

    def __init__(self, spec: TrainSpec, hardware: Hardware, parameters: int) -> None:
        self._spec = spec
        self._need = memory_need(spec, parameters)
        self._on_cpu = not hardware.gpus
        self._memory = (hardware.gpu_memory_gb or _UNKNOWN_GPU_GB) * _USABLE
        self._checkpointing = self._choose_checkpointing()

    def fields(self) -> dict[str, Any]:
        """Every field of `training` that this plan decides."""
        given = self._spec.training
        defaults = task_of(self._spec).FACTS.defaults
        goal = usual_rows(self._spec, self._spec.distributed.processes or 1)
        accumulation = given.gradient_accumulation_steps
        if not defaults.accumulates:
            accumulation = accumulation or 1
        room = goal if accumulation is None else max(1, goal // accumulation)
        most = _LARGEST_BATCH_CPU if defaults.accumulates else room
        batch = given.per_device_train_batch_size or self._batch(room, most)
        accumulation = accumulation or max(1, goal // batch)
        multiple = task_of(self._spec).FACTS.step_multiple(self._spec)
        if given.gradient_accumulation_steps is None:
            accumulation = _rounded_up(accumulation, multiple // gcd(batch, multiple))
        elif given.per_device_train_batch_size is None:
            batch = _rounded_up(batch, multiple // gcd(accumulation, multiple))
        return {
            "gradient_checkpointing": self._checkpointing,
            "per_device_train_batch_size": batch,
            "per_device_eval_batch_size": given.per_device_eval_batch_size or batch,
            "gradient_accumulation_steps": accumulation,
        }

    def shortage(self) -> str | None:
        """Why the run will hardly fit into the GPU's memory; None where it should."""
        rows = self._spec.training.per_device_train_batch_size or 1
        need = self._need
        per_row = need.row_checkpointed_gb if self._checkpointing else need.row_gb
        total = need.fixed_gb + rows * per_row
        if total <= self._memory:
            return None
        way_out = "choose a smaller model"
        if self._spec.adapter is None:
            way_out = "use a LoRA adapter"
        elif self._spec.adapts and self._spec.quantization is None:
            way_out = "hold the base in 4 bits with quantization.bits"
        return (
            f"about {total:.0f} GB of GPU memory are needed, and {self._memory:.0f} GB can be "
            f"used: {way_out}, a smaller task.max_length or a larger GPU"
        )

    def _choose_checkpointing(self) -> bool:
        given = self._spec.training.gradient_checkpointing
        if given is not None or self._on_cpu:
            return bool(given)
        wanted = self._spec.training.per_device_train_batch_size or _COMFORTABLE_BATCH
        return self._need.batch(self._memory, checkpointed=False) < wanted

    def _batch(self, room: int, most_on_cpu: int) -> int:
        """The largest power of two that fits memory and `room`, at least 1."""
        if self._on_cpu:
            return min(room, most_on_cpu)
        fits = self._need.batch(self._memory, checkpointed=self._checkpointing)
        return 1 << max(0, min(room, fits).bit_length() - 1) if fits else 1
