"""Backends: who loads a model and attaches adapters. The table of them is `BACKENDS`."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from trainer_core.backends import hf
from trainer_core.context import Loaded
from trainer_core.errors import InvalidSpec, TrainerError
from trainer_core.spec import ModelRef, Paths, TrainSpec
from trainer_core.task import evaluated, task_of


class Backend(Protocol):
    """One library that loads models: a module with these functions is enough.

    `PACKAGES` are what it imports for every spec.
    """

    PACKAGES: tuple[str, ...]

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


def require_packages(spec: TrainSpec) -> None:
    """Raise a TrainerError that names what this installation lacks for a spec; imports nothing."""
    name = next(iter(BACKENDS)) if spec.backend == "auto" else spec.backend
    lacking = [package for package in _packages(spec, name) if find_spec(package) is None]
    if lacking:
        raise TrainerError(
            f"backend '{name}' needs {', '.join(lacking)} for this spec, which is not installed on"
            " this host: install the trainer's locked environment (make env), or run the job on"
            " another host"
        )


def _packages(spec: TrainSpec, backend: str) -> Iterator[str]:
    yield from BACKENDS[backend].PACKAGES
    if (framework := task_of(evaluated(spec)).FACTS.model.framework) != "transformers":
        yield framework.replace("-", "_")
    if spec.quantization is not None or spec.training.optim.endswith("8bit"):
        yield "bitsandbytes"
