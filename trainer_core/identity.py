"""Which fields of a spec change what is trained: two runs with one hash train the same."""

from typing import Any

from trainer_core.publish.manifest import canonical_hash
from trainer_core.spec import TrainSpec

_WITHOUT_EFFECT = ("checkpoint", "tracking", "publish", "evaluation", "data")
_LOOP_WITHOUT_EFFECT = ("logging_steps", "per_device_eval_batch_size")
_LATER: dict[tuple[str, str], tuple[Any, ...]] = {("distributed", "processes"): (None, 1)}
"""Fields that came after checkpoints of older versions were written, by block and name, each with
the values that train as those versions did: with one of these it is no part of the hash."""


def spec_hash(spec: TrainSpec) -> str:
    """sha256 over the fields of a resolved spec that change the trained weights.

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
    return canonical_hash(fields)
