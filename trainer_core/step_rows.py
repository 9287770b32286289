"""How many rows a step takes where a spec leaves it open."""

from trainer_core.spec import TrainSpec
from trainer_core.task import task_of

_PACKED_ROWS_PER_STEP = 4


def usual_rows(spec: TrainSpec, processes: int) -> int:
    """Rows that each process brings to a step, accumulation included."""
    packed = spec.task.is_packed
    goal = _PACKED_ROWS_PER_STEP if packed else task_of(spec).FACTS.defaults.samples_per_step
    return -(-goal // processes)
