"""Which waiting job gets which free devices: pure, so that every rule can be tested alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """A device of a host that takes jobs now; `free` when no attempt has it.

    `held_for` is the project whose next job alone may take it.
    """

    index: int
    kind: Kind
    name: str
    memory_gb: float | None
    free: bool
    held_for: str | None = None


@dataclass(frozen=True)
class Waiting:
    """A job that could start now; `avoid` are hosts where it failed by no fault of its own."""

    job_id: str
    wish: Wish
    avoid: frozenset[str] = frozenset()
    project: str | None = None

    def may_take(self, device: "Slot") -> bool:
        """Say whether nobody else is to have the device."""
        return device.held_for in (None, self.project)


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


class Planner:
    """Gives free devices to jobs in the order in which they come; `hosts`: worker id → devices.

    A job that must wait keeps what is free on the host where it lacks least, so that smaller ones
    behind it cannot starve it. A host to be avoided is taken only where no other has the room.
    What is held for a project goes to its jobs alone, and they take that first.
    """

    def __init__(self, hosts: Mapping[str, Sequence[Slot]]) -> None:
        self.result = Plan()
        self._hosts = hosts
        self._free = {worker: [s for s in slots if s.free] for worker, slots in hosts.items()}
        self._ahead: Counter[Kind | None] = Counter()

    @property
    def has_room(self) -> bool:
        """Whether any device is neither given away nor reserved."""
        return any(self._free.values())

    @property
    def open_to(self) -> frozenset[str] | None:
        """The projects that what is left is held for; None: some of it is for everybody."""
        left = {slot.held_for for slots in self._free.values() for slot in slots}
        return None if None in left else frozenset(name for name in left if name is not None)

    def serves(self, wish: Wish) -> bool:
        """Say whether a job of this wish would still get or keep a device; a no stays one."""
        wish = _with_kind(wish, self._hosts)
        return any(_count(wish, self._free[worker]) for worker in self._able(wish))

    def add(self, job: Waiting) -> None:
        """Give the job its devices, or say why it waits."""
        wish = _with_kind(job.wish, self._hosts)
        able = self._able(wish)
        if not able:
            self.result.waiting[job.job_id] = _nobody(wish, self._hosts)
            return
        fitting = {w: [s for s in self._free[w] if wish.accepts(s)] for w in able}
        mine = {w: [s for s in slots if job.may_take(s)] for w, slots in fitting.items()}
        worker = max(able, key=lambda w: _fitness(job, wish, w, mine[w]))
        chosen = sorted(mine[worker], key=lambda s: s.held_for is None)[: wish.count]
        self._free[worker] = [s for s in self._free[worker] if s not in chosen]
        if len(chosen) == wish.count:
            devices = [s.index for s in chosen]
            self.result.assignments.append(Assignment(job.job_id, worker, devices))
        else:
            self.result.waiting[job.job_id] = _place(self._ahead[wish.kind], held=mine != fitting)
            self._ahead[wish.kind] += 1

    def _able(self, wish: Wish) -> list[str]:
        return [w for w, slots in self._hosts.items() if _count(wish, slots) >= wish.count]


def _with_kind(wish: Wish, hosts: Mapping[str, Sequence[Slot]]) -> Wish:
    if wish.kind is not None:
        return wish
    any_gpu = any(s.kind == "cuda" for slots in hosts.values() for s in slots)
    return Wish(wish.count, "cuda" if any_gpu else "cpu", wish.name, wish.min_memory_gb)


def _count(wish: Wish, slots: Sequence[Slot]) -> int:
    return sum(wish.accepts(slot) for slot in slots)


def _fitness(
    job: Waiting, wish: Wish, worker: str, fitting: Sequence[Slot]
) -> tuple[int, bool, int, int]:
    # As many of the wanted devices as possible, of such hosts one where some are held for the job,
    # else the one with the least to spare.
    held = sum(slot.held_for is not None for slot in fitting)
    return min(len(fitting), wish.count), worker not in job.avoid, held, -len(fitting)


def _nobody(wish: Wish, hosts: Mapping[str, Sequence[Slot]]) -> str:
    if not hosts:
        return "no worker online"
    if wish.kind == "cuda" and not any(s.kind == "cuda" for slots in hosts.values() for s in slots):
        return "no GPU worker online"
    return f"no worker online has {wish}"


def _place(ahead: int, *, held: bool) -> str:
    if ahead == 0:
        others = ", or held for another project's next job" if held else ""
        return f"next in line, all devices are busy{others}"
    if ahead > EXACT_PLACES:
        return f"more than {EXACT_PLACES} jobs ahead"
    return f"{ahead} job{'s' if ahead > 1 else ''} ahead"
