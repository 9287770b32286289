"""The trainer's own rules, applied to a JobSpec and the hosts that are online."""

from typing import Any

from app.errors import FieldProblem, InvalidPayload
from app.jobs.hardware import Host, hardware_for
from app.jobs.schemas import Warn
from app.jobs.spec import JobSpec
from trainer_core.capabilities import check
from trainer_core.resolve import Hardware, resolve
from trainer_core.spec import TrainSpec

# What depends on the machine stays as it was given while no host is online: the run fills it.
_BY_MACHINE = {
    "model": ("dtype",),
    "training": (
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
    ),
}


def resolve_spec(spec: JobSpec, hosts: list[Host]) -> tuple[dict[str, Any], list[Warn]]:
    """Return the TrainSpec with every default filled in, and what the caller should know.

    Raises InvalidPayload for combinations that cannot work.
    """
    train = spec.train_spec()
    hardware = hardware_for(spec.compute.gpus, hosts) if hosts else None
    if problems := check(train, hardware):
        raise InvalidPayload([FieldProblem(**problem.model_dump()) for problem in problems])
    found = resolve(train, hardware or Hardware())
    resolved = found.spec.model_dump(mode="json")
    if hardware is None:
        _open_again(resolved, train)
    return resolved, [Warn(code=w.code, message=w.message) for w in found.warnings]


def _open_again(resolved: dict[str, Any], given: TrainSpec) -> None:
    resolved["precision"] = given.precision
    for block, names in _BY_MACHINE.items():
        for name in names:
            resolved[block][name] = getattr(getattr(given, block), name)
