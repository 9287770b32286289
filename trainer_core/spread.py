"""How many processes a run trains in: a pure rule, asked before any of them is there."""

from collections.abc import Iterator

from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_ON_A_CPU = 2


def processes_of(spec: TrainSpec, gpus: int) -> int:
    """Processes for a spec on `gpus` GPUs (0: the CPU); 1: no DDP.

    `auto` takes a process for each GPU where the task can be spread, and one on a CPU (ADR 0019);
    of a stream one as well, because what is prepared of it is known before any GPU is.
    """
    wish = spec.distributed
    if wish.strategy == "none" or task_of(spec).FACTS.ddp is not None:
        return 1
    if wish.processes is not None:
        return wish.processes
    if spec.data.streaming:
        return 1
    if gpus:
        return gpus
    return _ON_A_CPU if wish.strategy == "ddp" else 1


def spread_problems(spec: TrainSpec, hardware: Hardware | None) -> Iterator[Problem]:
    """Processes that cannot be had, or that nobody starts."""
    wish = spec.distributed
    if wish.processes is None:
        return
    text = None
    if wish.strategy == "none" and wish.processes > 1:
        text = f"is {wish.processes}, but the strategy is 'none': use 'ddp', or leave it out"
    elif wish.processes > 1 and (reason := task_of(spec).FACTS.ddp) is not None:
        text = f"is {wish.processes}, but task '{spec.task.type}' trains in one process: {reason}"
    elif hardware is not None and 0 < hardware.gpus < wish.processes:
        text = (
            f"is {wish.processes}, but each process needs a GPU of its own, and there are"
            f" {hardware.gpus}: lower it, or ask for more with compute.gpus.count"
        )
    if text is not None:
        pointer = "/distributed/processes"
        message = f"distributed.processes {text}"
        yield Problem(pointer=pointer, message=message, value=repr(wish.processes))
