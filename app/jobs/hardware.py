"""What the hosts that are online could give to a job."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.jobs.spec import Gpus
from app.models import Device, Worker
from app.settings import get_settings
from trainer_core.resolve import Hardware

_CACHE_SECONDS = 2.0


@dataclass
class Host:
    """A host that is online and takes jobs; `gpus` are names with memory in GiB."""

    id: str
    gpus: list[tuple[str, float]] = field(default_factory=list)

    def fitting(self, wanted: Gpus) -> list[tuple[str, float]]:
        """Return the host's devices of this kind, free or not."""
        return [
            (name, memory)
            for name, memory in self.gpus
            if (wanted.name or "").lower() in name.lower() and memory >= (wanted.min_memory_gb or 0)
        ]

    def could_run(self, wanted: Gpus) -> bool:
        """Say whether the host has as many such devices, free or not."""
        return len(self.fitting(wanted)) >= wanted.count


def hardware_for(wanted: Gpus | None, hosts: list[Host]) -> Hardware:
    """Return what the job can count on, whichever of the hosts takes it."""
    asked = wanted or Gpus()
    devices = [d for host in hosts if host.could_run(asked) for d in host.fitting(asked)]
    if not devices:
        return Hardware()
    return Hardware(
        gpus=asked.count,
        gpu_memory_gb=min(memory for _, memory in devices) or None,
        bf16=all(not _WITHOUT_BF16.search(name) for name, _ in devices),
    )


# Before Ampere: https://developer.nvidia.com/cuda-gpus (compute capability below 8.0).
_WITHOUT_BF16 = re.compile(
    r"\b(?:[KMPV]\d{2,3}|T4|GTX|TITAN|RTX 20\d\d|Quadro (?:RTX|[KMPG]))", re.IGNORECASE
)
_cache: dict[str, tuple[float, list[Host]]] = {}


def hosts_online(session: Session) -> list[Host]:
    """Return the hosts that were seen lately; the answer may be two seconds old."""
    settings = get_settings()
    key = settings.database_url.get_secret_value()
    found = _cache.get(key)
    if found and found[0] > time.monotonic():
        return found[1]
    fresh = text("workers.seen_at > now() - :seconds * interval '1 second'")
    query = (
        select(Worker.id, Device.kind, Device.name, Device.memory_gb)
        .join(Device, Device.worker_id == Worker.id, isouter=True)
        .where(Worker.kind == "host", Worker.draining.is_(False), fresh)
    )
    rows = session.execute(query, {"seconds": settings.worker_timeout})
    hosts = _grouped((row[0], row[1], row[2], row[3]) for row in rows)
    _cache[key] = (time.monotonic() + _CACHE_SECONDS, hosts)
    return hosts


def _grouped(rows: Iterable[tuple[str, str | None, str | None, float | None]]) -> list[Host]:
    hosts: dict[str, Host] = {}
    for worker_id, kind, name, memory in rows:
        host = hosts.setdefault(worker_id, Host(worker_id))
        if kind == "cuda":
            host.gpus.append((name or "", memory or 0.0))
    return list(hosts.values())
