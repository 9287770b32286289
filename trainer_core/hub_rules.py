"""Rules about what is pushed to a hub while a run goes on."""

from collections.abc import Iterator

from trainer_core.hardware import Hardware
from trainer_core.problems import Problem
from trainer_core.spec import TrainSpec


def hub_problems(spec: TrainSpec, _: Hardware | None) -> Iterator[Problem]:
    """Pushes before the end that a gate could not take back."""
    hub, gate = spec.publish.hub, spec.publish.gate
    if hub is not None and hub.strategy != "end" and gate is not None:
        text = (
            f"publish.hub.strategy is '{hub.strategy}', which pushes weights before publish.gate"
            " has judged them: use 'end', or leave the gate out"
        )
        pointer = "/publish/hub/strategy"
        yield Problem(pointer=pointer, message=text, value=repr(hub.strategy))


def pushed_at_the_end_alone(spec: TrainSpec) -> str | None:
    """Why nothing is pushed on the way although that is wished for; None where something is."""
    hub = spec.publish.hub
    if hub is None or hub.strategy == "end" or spec.checkpoint.save_strategy != "no":
        return None
    return (
        f"publish.hub.strategy is '{hub.strategy}', but checkpoint.save_strategy 'no' saves nothing"
        " on the way: the model is pushed at the end alone"
    )
