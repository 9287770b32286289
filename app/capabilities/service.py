"""The trainer's table with the targets of this installation, and the schemas of the specs."""

from functools import lru_cache
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel

from app.capabilities.schemas import CapabilitiesOut, Combination, GpuOnly, TaskSchema
from app.jobs.spec import JobSpec
from app.settings import get_settings
from trainer_core.capabilities import NEEDS_GPU, TABLE
from trainer_core.spec import TrainSpec


@lru_cache
def capabilities() -> CapabilitiesOut:
    """Return the table and the schemas; they change only with the code and the settings."""
    targets = {"local": True, "fake": get_settings().fake_target}
    return CapabilitiesOut(
        combinations=[
            Combination(
                task=row.task,
                backend=row.backend,
                adapter=row.adapter,
                quantization=row.quantization,
                strategy=row.strategy,
                target=target,
                supported=row.reason is None and is_on,
                reason=row.reason if is_on else "the target is not switched on here",
            )
            for row in TABLE
            for target, is_on in targets.items()
        ],
        gpu_only=[
            GpuOnly(pointer=n.pointer, value=n.value, reason=f"{n.why}: use {n.instead}")
            for n in NEEDS_GPU
        ],
        tasks=[_task(model) for model in _members(TrainSpec.model_fields["task"].annotation)],
        job_schema=JobSpec.model_json_schema(),
    )


def _members(annotation: object) -> list[type[BaseModel]]:
    """Return the task models: one, or the members of their union."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


def _task(model: type[BaseModel]) -> TaskSchema:
    [name] = get_args(model.model_fields["type"].annotation)
    return TaskSchema(type=name, json_schema=model.model_json_schema())
