"""Backends: who loads a model and attaches adapters. The table of them is `BACKENDS`."""

from collections.abc import Mapping
from typing import Any, Protocol

from trainer_core.backends import hf
from trainer_core.context import Loaded
from trainer_core.errors import InvalidSpec
from trainer_core.spec import ModelRef, Paths, TrainSpec


class Backend(Protocol):
    """One library that loads models: a module with this function is enough."""

    def load(
        self,
        spec: TrainSpec,
        paths: Paths,
        secrets: Mapping[str, str],
        facts: Mapping[str, Any] | None = None,
        *,
        whole: bool = False,
    ) -> Loaded:
        """Load tokenizer and model of a resolved spec on the CPU and attach its adapter.

        The task's `FACTS.model` says which kind of model; `facts` are those of the prepared data
        (the label map), which decide the head of some.

        `whole` refuses models of which a part would begin at random, or whose labels are others.
        Trainable parameters of a 16-bit run are fp32. Raises ModelUnavailable and InvalidSpec.
        """

    def load_frozen(
        self, spec: TrainSpec, ref: ModelRef, paths: Paths, secrets: Mapping[str, str]
    ) -> Any:
        """Load a further model of the task's kind that is not trained, in the run's precision.

        Raises ModelUnavailable and InvalidSpec.
        """

    def load_judge(self, spec: TrainSpec, ref: ModelRef, paths: Paths) -> Any:
        """Load a reward model, a `JudgingModel`; raises the same."""


BACKENDS: dict[str, Backend] = {"hf": hf}


def backend_of(spec: TrainSpec) -> Backend:
    """The backend of a resolved spec."""
    if spec.backend not in BACKENDS:
        raise InvalidSpec(f"backend must be one of: {', '.join(BACKENDS)}", "backend")
    return BACKENDS[spec.backend]
