"""A plan: the data prepared, everything else worked out; nothing is trained but for a probe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.capabilities import check
from trainer_core.data.prepared import Prepared, open_prepared
from trainer_core.data.report import TOKENIZER, PreparedReport
from trainer_core.errors import InvalidSpec
from trainer_core.hardware import Hardware
from trainer_core.loading import load_reader, load_tokenizer
from trainer_core.machine import detect_hardware
from trainer_core.memory import Shape
from trainer_core.model_source import ModelSource, local_parameters, locate
from trainer_core.new_tokens import with_new_tokens
from trainer_core.plans.needs import disk_of, memory_of
from trainer_core.plans.preview import WITH_MASK
from trainer_core.plans.preview import preview as first_samples
from trainer_core.plans.probe import probe as measured
from trainer_core.plans.results import Estimate, Notice, Plan, Rows, Sample, Tokens
from trainer_core.plans.sample import sampled
from trainer_core.plans.scale import scale_of, scaled
from trainer_core.plans.size import shape_of
from trainer_core.plans.steps import planned_steps
from trainer_core.prepare import prepared_folder
from trainer_core.resolve import Resolved, resolve, size_in_name
from trainer_core.spec import Launch, TrainSpec
from trainer_core.task import evaluated, task_of

Emit = Callable[..., Any]


@dataclass(frozen=True)
class _Found:
    """A launch that was looked at: its resolved spec (of an evaluation: the evaluated task's)."""

    launch: Launch
    secrets: Mapping[str, str]
    hardware: Hardware
    resolved: Resolved
    data: Prepared
    trains: bool

    @property
    def spec(self) -> TrainSpec:
        """The resolved spec."""
        return self.resolved.spec


def plan(
    launch: Launch,
    secrets: Mapping[str, str],
    *,
    samples: int | None = None,
    probe: bool = False,
    emit: Emit | None = None,
) -> Plan:
    """What a run of a launch will do and need on the devices that it is given.

    Prepares its data in its work folder as the run would, which then uses them; `emit` hears of
    that as in `prepare`. `samples`: how many are shown token by token. `probe`: measure memory by
    two real steps too. Raises InvalidSpec, InvalidData, DataUnavailable, ModelUnavailable or
    DiskFull, and leaves nothing half-written then.
    """
    _require_some(samples)
    found = _looked_at(launch, secrets, emit)
    said = _said(found, samples)
    if probe:
        spec = found.spec if found.trains else launch.spec
        resolved = launch.model_copy(update={"spec": spec})
        said.memory.probe = measured(resolved, secrets, found.data, said.memory.total_gb, emit)
    return said


def estimate(
    launch: Launch,
    secrets: Mapping[str, str],
    first: int,
    *,
    samples: int | None = None,
    emit: Emit | None = None,
) -> Estimate:
    """What `plan` would say, told by about `first` training rows: the first ones of each source.

    Nothing behind them is read or fetched, and a run does not use them. Raises as `plan` does.
    """
    _require_some(samples)
    if first < 1:
        raise InvalidSpec(f"{first} rows tell nothing: read the first 1 or more (--first)", "first")
    hardware, resolved, trains = _resolved(launch)
    here = launch.model_copy(update={"spec": resolved.spec})
    with sampled(here, secrets, first, emit) as sample:
        found = _Found(launch, secrets, hardware, resolved, sample.data, trains)
        scale = scale_of(resolved.spec, sample)
        said = _said(found, samples, scale.likely_rows)
        return scaled(said, resolved.spec, sample, scale)


def _said(found: _Found, samples: int | None, rows: int | None = None) -> Plan:
    """What the prepared rows say, or as many `rows` like them."""
    spec, data, work = found.spec, found.data, Path(found.launch.paths.work)
    shape = _shape(found)
    times = 1.0 if rows is None else rows / len(data.train)
    steps = planned_steps(spec, data, rows) if found.trains else None
    return Plan(
        task=found.launch.spec.task.type,
        model=spec.model.name_or_path,
        device=f"{found.hardware.gpus} GPUs" if found.hardware.gpus else "cpu",
        steps=steps,
        rows=_rows(data),
        tokens=_tokens(spec, data.report),
        memory=memory_of(spec, shape, data, found.hardware, trains=found.trains),
        disk=disk_of(spec, shape, (data, times), work, steps),
        warnings=_warnings(found),
        samples=[] if samples is None else _samples(found, samples),
    )


def preview(
    launch: Launch, secrets: Mapping[str, str], samples: int, emit: Emit | None = None
) -> list[Sample]:
    """The first samples of a launch, token by token; prepares its data and raises as `plan`."""
    _require_some(samples)
    return _samples(_looked_at(launch, secrets, emit), samples)


def _require_some(samples: int | None) -> None:
    if samples is not None and samples < 1:
        raise InvalidSpec(f"{samples} samples cannot be shown: ask for 1 or more", "samples")


def _resolved(launch: Launch) -> tuple[Hardware, Resolved, bool]:
    """For what hardware, as what, and whether anything is trained."""
    hardware = detect_hardware(launch)
    if problems := check(launch.spec, hardware):
        raise InvalidSpec("; ".join(problem.message for problem in problems))
    trains = task_of(launch.spec).FACTS.trains
    return hardware, resolve(evaluated(launch.spec), hardware, local_parameters(launch)), trains


def _looked_at(launch: Launch, secrets: Mapping[str, str], emit: Emit | None) -> _Found:
    hardware, resolved, trains = _resolved(launch)
    here = launch.model_copy(update={"spec": resolved.spec})
    folder = prepared_folder(here, secrets, emit)
    data = open_prepared(folder, resolved.spec.evaluation.max_samples)
    return _Found(launch, secrets, hardware, resolved, data, trains)


def _source(found: _Found) -> ModelSource:
    return locate(found.spec.model, found.launch.paths, found.secrets)


def _shape(found: _Found) -> Shape:
    name = found.spec.model.name_or_path
    parameters = local_parameters(found.launch) or size_in_name(name)
    shape = shape_of(found.spec, _source(found), parameters, found.launch.paths.moved)
    if shape is None:
        raise InvalidSpec(
            f"neither the configuration nor the name of '{name}' tells the model's size, so there"
            " is no plan of its memory: name a model with a config.json",
            "model.name_or_path",
        )
    return shape


def _samples(found: _Found, count: int) -> list[Sample]:
    trained = found.data.folder / TOKENIZER
    if trained.is_dir():
        tokenizer = load_tokenizer(ModelSource(str(trained), "the trained tokenizer"))
    else:
        tokenizer, _ = load_reader(task_of(found.spec).FACTS.model, _source(found))
    return first_samples(
        found.spec, found.data, with_new_tokens(tokenizer, found.spec.model), count
    )


def _rows(data: Prepared) -> Rows:
    report = data.report
    full = report.train_rows * report.max_length
    return Rows(
        read=report.rows_in,
        kept=report.rows_kept,
        dropped=report.rows_dropped,
        cut=report.rows_cut,
        train=len(data.train),
        train_samples=report.train_samples,
        validation=0 if data.validation is None else len(data.validation),
        packed=report.packed,
        fill=report.total_tokens / full if report.packed and full else None,
    )


def _tokens(spec: TrainSpec, report: PreparedReport) -> Tokens:
    masked = task_of(spec).FACTS.rows in WITH_MASK
    trained = report.trained_tokens if masked else None
    return Tokens(
        total=report.total_tokens,
        trained=trained,
        trained_share=None if trained is None else trained / max(report.total_tokens, 1),
        p50=report.length_p50,
        p95=report.length_p95,
        max=report.longest,
        histogram=report.histogram,
    )


def _warnings(found: _Found) -> list[Notice]:
    told = [(w.code, w.message) for w in found.resolved.warnings]
    told += [(w["code"], w["message"]) for w in found.data.report.warnings]
    return [Notice(code=code, message=message) for code, message in told]
