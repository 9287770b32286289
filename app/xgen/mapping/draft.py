"""What a form becomes, while it is made."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from app.errors import FieldProblem, InvalidPayload
from app.jobs.schemas import Warn
from app.settings import Settings
from app.xgen.form import TrainForm
from trainer_core.hardware import Hardware


@dataclass(frozen=True)
class Surroundings:
    """What a form is judged by: settings, the hosts online (None: no host is), names of secrets."""

    settings: Settings
    hardware: Hardware | None
    secret_name: Callable[[str], str]

    @property
    def gpus(self) -> int:
        """GPUs that a job can count on; 0: the CPU, or nobody knows."""
        return self.hardware.gpus if self.hardware else 0


@dataclass
class Draft:
    """A spec that grows; it remembers which field of the form each part comes from."""

    form: TrainForm
    around: Surroundings
    spec: dict[str, Any] = field(default_factory=dict)
    warnings: list[Warn] = field(default_factory=list)
    problems: list[FieldProblem] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a secret → the form's field and the value."""
    task: str = ""
    """The type of the task, once it is chosen."""

    def put(self, path: str, value: Any, origin: str) -> None:
        """Set a part of the spec (`task.max_length`); `origin` is the form's field behind it."""
        *blocks, name = path.split(".")
        block = self.spec
        for each in blocks:
            block = block.setdefault(each, {})
        block[name] = value
        self.origins["/" + path.replace(".", "/")] = origin

    def copy(self, block: str, names: Iterable[tuple[str, str]]) -> None:
        """Set (name in the block, field of the form) pairs to what the form says."""
        for name, origin in names:
            self.put(f"{block}.{name}", getattr(self.form, origin), origin)

    def warn(self, name: str, why: str) -> None:
        """Say what the caller should know about a field of the form."""
        self.warnings.append(Warn(code=f"xgen_{name}", message=f"{name} {why}"))

    def without_effect(self, names: Iterable[str], why: str) -> None:
        """Say of each of these fields, where the caller set it, that it has no effect, and why."""
        for name in names:
            if self.form.is_set(name):
                self.warn(name, f"has no effect: {why}")

    def refuse(self, name: str, why: str) -> None:
        """Note what cannot work about a field of the form; `why` says the value and the way out."""
        self.problems.append(FieldProblem(pointer=f"/{name}", message=f"{name} {why}"))

    def secret(self, name: str, value: str) -> dict[str, str]:
        """Have a value of the form kept as a secret; returns how a spec names it."""
        secret_name = self.around.secret_name(value)
        self.secrets[secret_name] = (name, value)
        return {"secret": secret_name}

    def finish(self) -> None:
        """Raise InvalidPayload where something cannot work."""
        if self.problems:
            raise InvalidPayload(self.problems)

    def field_of(self, pointer: str) -> str:
        """Return the form's field behind a place of the spec, found by its longest known part."""
        parts = pointer.split("/")
        for end in range(len(parts), 1, -1):
            if (origin := self.origins.get("/".join(parts[:end]))) is not None:
                return origin
        below = [o for place, o in self.origins.items() if place.startswith(f"{pointer}/")]
        return below[0] if below else "training_method"


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    return repr(value)[:80]
