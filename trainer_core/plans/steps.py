"""How many steps a run has: Transformers' own rule, asked before there is a Trainer."""

from math import ceil

from trainer_core.data.prepared import Prepared
from trainer_core.plans.results import Steps
from trainer_core.spec import TrainSpec
from trainer_core.task import task_of


def planned_steps(spec: TrainSpec, data: Prepared, rows: int | None = None) -> Steps:
    """Steps of a resolved spec on prepared rows, or on as many `rows` like them.

    The rule is that of `Trainer.set_initial_training_values`; how many batches an epoch has the
    task says (`TaskFacts.batches`), and ranks share them evenly (`rank_share`). Raises InvalidData
    for rows that make no batch.
    """
    training = spec.training
    rows = len(data.train) if rows is None else rows
    batch = training.per_device_train_batch_size or 1
    accumulated = training.gradient_accumulation_steps or 1
    processes = spec.distributed.processes or 1
    epochs = training.num_train_epochs or 1.0
    batches = ceil(task_of(spec).FACTS.batches(spec, data, rows) / processes)
    per_epoch = max(ceil(batches / accumulated), 1)
    total = training.max_steps or ceil(epochs * per_epoch)
    return Steps(
        per_device_batch=batch,
        accumulation=accumulated,
        processes=processes,
        global_batch=batch * accumulated * processes,
        per_epoch=per_epoch,
        epochs=total / per_epoch if training.max_steps else epochs,
        total=total,
    )
