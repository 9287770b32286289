"""From the form to a job's spec: pure functions, one module for each group of fields."""

from collections.abc import Callable

from app.xgen.form import TrainForm
from app.xgen.mapping import (
    adapter,
    data,
    embedding,
    loop,
    machine,
    method,
    model,
    publish,
    saves,
    task,
    tracking,
)
from app.xgen.mapping.draft import Draft, Surroundings

_STEPS: tuple[Callable[[Draft], None], ...] = (
    tracking.urls,
    method.choose,
    machine.devices,
    machine.deepspeed,
    model.describe,
    task.describe,
    embedding.describe,
    data.describe,
    loop.describe,
    loop.optimizer,
    loop.precision,
    adapter.describe,
    saves.checkpoints,
    saves.evaluations,
    publish.describe,
    tracking.describe,
    tracking.unknown,
)


def map_form(form: TrainForm, around: Surroundings) -> Draft:
    """Return the spec that a form means, with warnings, secrets, and whose field is whose.

    Raises InvalidPayload with a problem for each field that cannot work.
    """
    draft = Draft(form, around)
    for step in _STEPS:
        step(draft)
    draft.finish()
    return draft
