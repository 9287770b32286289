"""Which waiting job gets which free devices: pure, so that every rule can be tested alone."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cpu", "cuda"]
EXACT_PLACES = 20


@dataclass(frozen=True)
class Wish:
    """What a job asks of one host; without a kind: one GPU where there is any, else a CPU slot."""

    count: int = 1
    kind: Kind | None = None
    name: str | None = None
    min_memory_gb: float | None = None

    def accepts(self, device: "Slot") -> bool:
        """Say whether the device is of the wanted kind, name and memory."""
        return (
            self.kind in (None, device.kind)
            and (self.name is None or self.name.casefold() in device.name.casefold())
            and (self.min_memory_gb is None or (device.memory_gb or 0) >= self.min_memory_gb)
        )

    def __str__(self) -> str:
        """Say it as a person would: `2 × A100 (≥ 40 GB)`."""
        what = self.name or {"cuda": "GPU", "cpu": "CPU slot", None: "device"}[self.kind]
        memory = f" (≥ {self.min_memory_gb:g} GB)" if self.min_memory_gb else ""
        return f"{self.count} × {what}{memory}"


@dataclass(frozen=True)
class Slot:
    """A device of a host that takes jobs now; `free` when no attempt holds it."""

    index: int
    kind: Kind
    name: str
    memory_gb: float | None
    free: bool


@dataclass(frozen=True)
class Waiting:
    """A job that could start now; `avoid` are hosts where it failed by no fault of its own."""

    job_id: str
    wish: Wish
    avoid: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Assignment:
    """A job, its host and the devices that it gets there."""

    job_id: str
    worker_id: str
    devices: list[int]


@dataclass
class Plan:
    """What is placed now, and why each other job waits."""

    assignments: list[Assignment] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)


def plan(jobs: Iterable[Waiting], hosts: dict[str, Sequence[Slot]]) -> Plan:
    """Give free devices to the jobs in their order; `hosts` maps worker ids to their devices.

    A job that must wait keeps what is free on the host where it lacks least, so that smaller ones
    behind it cannot starve it. A host to be avoided is taken only where no other has the room.
    """
    result = Plan()
    free = {worker: [s for s in slots if s.free] for worker, slots in hosts.items()}
    ahead: Counter[Kind | None] = Counter()
    for job in jobs:
        wish = _with_kind(job.wish, hosts)
        able = [w for w, slots in hosts.items() if _count(wish, slots) >= wish.count]
        if not able:
            result.waiting[job.job_id] = _nobody(wish, hosts)
            continue
        worker = max(able, key=lambda w: _fitness(job, wish, w, free[w]))
        chosen = [s for s in free[worker] if wish.accepts(s)][: wish.count]
        free[worker] = [s for s in free[worker] if s not in chosen]
        if len(chosen) == wish.count:
            result.assignments.append(Assignment(job.job_id, worker, [s.index for s in chosen]))
        else:
            result.waiting[job.job_id] = _place(ahead[wish.kind])
            ahead[wish.kind] += 1
    return result


def _with_kind(wish: Wish, hosts: dict[str, Sequence[Slot]]) -> Wish:
    if wish.kind is not None:
        return wish
    any_gpu = any(s.kind == "cuda" for slots in hosts.values() for s in slots)
    return Wish(wish.count, "cuda" if any_gpu else "cpu", wish.name, wish.min_memory_gb)


def _count(wish: Wish, slots: Sequence[Slot]) -> int:
    return sum(wish.accepts(slot) for slot in slots)


def _fitness(job: Waiting, wish: Wish, worker: str, free: Sequence[Slot]) -> tuple[int, bool, int]:
    # As many of the wanted devices as possible, and of such hosts the one with the least to spare.
    fitting = _count(wish, free)
    return min(fitting, wish.count), worker not in job.avoid, -fitting


def _nobody(wish: Wish, hosts: dict[str, Sequence[Slot]]) -> str:
    if not hosts:
        return "no worker online"
    if wish.kind == "cuda" and not any(s.kind == "cuda" for slots in hosts.values() for s in slots):
        return "no GPU worker online"
    return f"no worker online has {wish}"


def _place(ahead: int) -> str:
    if ahead == 0:
        return "next in line, all devices are busy"
    if ahead > EXACT_PLACES:
        return f"more than {EXACT_PLACES} jobs ahead"
    return f"{ahead} job{'s' if ahead > 1 else ''} ahead"
