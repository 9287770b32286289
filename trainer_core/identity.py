"""Which fields of a spec change what is trained: two runs with one hash train the same."""

from collections.abc import Mapping
from typing import Any

from trainer_core.publish.manifest import canonical_hash
from trainer_core.spec import TrainSpec

_WITHOUT_EFFECT = ("checkpoint", "tracking", "publish", "evaluation", "data")
_LOOP_WITHOUT_EFFECT = ("logging_steps", "per_device_eval_batch_size")
_LATER: dict[tuple[str, str], tuple[Any, ...]] = {("distributed", "processes"): (None, 1)}
"""Fields that came after checkpoints of older versions were written, by block and name, each with
the values that train as those versions did: with one of these it is no part of the hash."""


def spec_hash(spec: TrainSpec) -> str:
    """sha256 over `trained_fields`."""
    return canonical_hash(trained_fields(spec))


def trained_fields(spec: TrainSpec) -> dict[str, Any]:
    """The fields of a resolved spec that change the trained weights.

    The data has a hash of its own; logging, evaluation, saving and publishing draw no random
    number of the training.
    """
    fields: dict[str, Any] = spec.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))
    for name in _LOOP_WITHOUT_EFFECT:
        del fields["training"][name]
    del fields["model"]["token"]
    for (block, name), as_before in _LATER.items():
        if fields[block] is not None and fields[block].get(name) in as_before:
            fields[block].pop(name, None)
    return fields


def as_begun(given: TrainSpec, resolved: TrainSpec, begun: Mapping[str, Any]) -> TrainSpec:
    """`given` with its open fields as in `begun`, the `trained_fields` of the run that goes on:
    another version's defaults, or another machine, would make another training of it.

    Raises pydantic.ValidationError where the values of then are not legal any more.
    """
    now = trained_fields(resolved)
    if not begun or now == begun:
        return given
    older: dict[str, dict[str, Any]] = {}
    for (block, field), as_before in _LATER.items():
        older.setdefault(block, {})[field] = as_before[-1]
    said: dict[str, Any] = {}
    for name, then in begun.items():
        was, is_ = getattr(given, name, None), getattr(resolved, name, None)
        if isinstance(then, dict) and isinstance(now.get(name), dict):
            fields = {
                field: value
                for field, value in (older.get(name, {}) | then).items()
                if getattr(was, field, None) != getattr(is_, field, None)
            }
            if fields and was is not None:
                said[name] = was.model_dump(exclude_unset=True) | fields
        elif name in now and was != is_:
            said[name] = then
    if not said:
        return given
    return type(given).model_validate(given.model_dump(exclude_unset=True) | said)
