"""Rules about what is pushed to a hub while a run goes on."""

from collections.abc import Iterator

from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import TrainSpec

_POINTER = "/publish/hub/strategy"


def hub_problems(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Pushes before the end that a gate could not take back, or that nothing would cause."""
    hub = spec.publish.hub
    if hub is None or hub.strategy == "end":
        return
    began = f"publish.hub.strategy is '{hub.strategy}'"
    if spec.publish.gate is not None:
        text = (
            f"{began}, which pushes weights before publish.gate has judged them: use 'end', or"
            " leave the gate out"
        )
        yield Problem(pointer=_POINTER, message=text, value=repr(hub.strategy))
    if spec.checkpoint.save_strategy == "no":
        text = (
            f"{began}, but checkpoint.save_strategy 'no' saves nothing on the way: use 'end', or"
            " save checkpoints"
        )
        yield Problem(pointer=_POINTER, message=text, value=repr(hub.strategy))
