"""The contract of a target: a place that runs trainers, told by handles and observed by lists.

TargetError                 the operator must act
├── NoCapacity              nothing suitable is free now (retried)
├── QuotaExceeded           the account may not have more (retried)
├── ProvisioningFailed      the machine or the process did not come up (retried)
├── InstanceLost            it was there and is gone (retried)
└── TargetMisconfigured     settings or credentials cannot work (not retried)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from app.jobs.lifecycle import FailureReason
from app.jobs.spec import Compute
from trainer_core.spec import Launch


class TargetError(Exception):
    """A target could not do what it was asked to; the message is for the operator."""

    reason: ClassVar[FailureReason] = FailureReason.INTERNAL


class NoCapacity(TargetError):
    """Nothing suitable is free now."""

    reason = FailureReason.NO_CAPACITY


class QuotaExceeded(TargetError):
    """The account may not have more."""

    reason = FailureReason.NO_CAPACITY


class ProvisioningFailed(TargetError):
    """The machine or the process did not come up."""

    reason = FailureReason.PROVISIONING_FAILED


class InstanceLost(TargetError):
    """It was there and is gone."""

    reason = FailureReason.MACHINE_LOST


class TargetMisconfigured(TargetError):
    """Settings or credentials cannot work."""

    reason = FailureReason.TARGET_MISCONFIGURED


@dataclass(frozen=True)
class Handle:
    """What was launched: `label` is the attempt's id on the target's side, `data` plain JSON."""

    target: str
    label: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """`running`; `exited` with a code (negative: a signal) where it is known; or `gone`."""

    state: Literal["running", "exited", "gone"]
    exit_code: int | None = None


Observations = Mapping[str, Observation]
"""By label; a label that is missing could not be observed now, which says nothing about it."""


class Target(Protocol):
    """A place that runs trainers. Each call returns soon and may be repeated."""

    name: str

    def launch(self, launch: Launch, compute: Compute) -> Handle:
        """Start a trainer for the attempt, labelled by the attempt's id.

        The attempt's row exists before anything is created; launching again finds what the first
        time has started, whose handle was lost with the caller. Raises NoCapacity, QuotaExceeded,
        ProvisioningFailed and TargetMisconfigured.
        """
        ...

    def observe_many(self, handles: Sequence[Handle]) -> Observations:
        """Look at many trainers at once, by as few requests as the target allows.

        Raises TargetMisconfigured when the target refuses us; what cannot be seen now is left out.
        """
        ...

    def stop(self, handle: Handle) -> None:
        """Stop the trainer and everything below it; stopping what is gone is silent.

        Raises ProvisioningFailed when something is left: the caller records it and tries again.
        """
        ...

    def sweep(self, label: str) -> Sequence[Handle]:
        """Return everything of ours that runs there and whose label begins with `label`."""
        ...
