"""What one attempt runs on: the job as it was asked for, its secrets, and its Launch."""

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.service import Claim
from app.datasets.service import locate
from app.jobs.lifecycle import FailureReason
from app.jobs.references import secret_names
from app.jobs.spec import JobSpec, seconds
from app.secrets.service import reveal
from app.settings import Settings
from app.storage import Store
from trainer_core.hardware import Hardware
from trainer_core.spec import Launch, Paths
from worker.blocks import Lent
from worker.fetch import Fetcher
from worker.registration import threads_per_slot
from worker.resume import Resumer


@dataclass(frozen=True)
class JobFacts:
    """What a supervisor needs to know of its job; `earlier` are the ids of its attempts so far."""

    id: str
    project_id: str
    name: str
    spec: JobSpec
    prepared_key: str | None
    used_seconds: float
    cuda_devices: list[int]
    earlier: list[str]
    cold: bool
    secrets: dict[str, str] = field(repr=False)

    @property
    def time_left(self) -> float | None:
        """Seconds that the job may still run; None: as long as it takes."""
        limit = self.spec.compute.max_runtime
        return None if limit is None else max(0.0, seconds(limit) - self.used_seconds)


_JOB = text("SELECT project_id, name, spec, prepared_key FROM jobs WHERE id = :job_id")
_EARLIER = text(
    """
    SELECT id, reason, coalesce(extract(epoch FROM finished_at - started_at), 0) AS seconds
    FROM attempts WHERE job_id = :job_id AND finished_at IS NOT NULL ORDER BY number
    """
)
_CUDA = text(
    """
    SELECT d.index FROM devices d JOIN attempts a ON a.id = d.attempt_id
    WHERE a.job_id = :job_id AND a.finished_at IS NULL AND d.kind = 'cuda' ORDER BY d.index
    """
)
# After these a warm start is not tried again: the fork itself may be what hangs.
_COLD_AFTER = (FailureReason.STALLED, FailureReason.START_TIMEOUT)


def read_job(session: Session, job_id: str) -> JobFacts:
    """Read the job and reveal its secrets; raises NotFound for a secret that is gone."""
    row = session.execute(_JOB, {"job_id": job_id}).one()
    earlier = session.execute(_EARLIER, {"job_id": job_id}).all()
    cuda = list(session.execute(_CUDA, {"job_id": job_id}).scalars())
    spec = JobSpec.model_validate(row.spec)
    values = reveal(session, row.project_id, set(secret_names(spec).values()))
    return JobFacts(
        id=job_id,
        project_id=row.project_id,
        name=row.name,
        spec=spec,
        prepared_key=row.prepared_key,
        used_seconds=float(sum(each.seconds for each in earlier)),
        cuda_devices=cuda,
        earlier=[each.id for each in earlier],
        cold=bool(earlier) and earlier[-1].reason in _COLD_AFTER,
        secrets=values,
    )


@dataclass(frozen=True)
class PlanFacts:
    """What a supervisor needs to know of its plan; `job` is the one that is planned."""

    job: JobFacts
    hardware: Hardware | None
    samples: int | None
    has_estimate: bool
    known_rows: dict[str, int]


_PLAN = text(
    """
    SELECT project_id, spec, hardware, samples, estimate IS NOT NULL AS has_estimate
    FROM plans WHERE id = :id
    """
)
_ROWS = text("SELECT rows FROM datasets WHERE project_id = :project AND id = :id")


def read_plan(session: Session, plan_id: str) -> PlanFacts:
    """Read the plan and reveal the secrets of its job; raises NotFound for one that is gone."""
    row = session.execute(_PLAN, {"id": plan_id}).one()
    spec = JobSpec.model_validate(row.spec)
    job = JobFacts(
        id=plan_id,
        project_id=row.project_id,
        name=spec.name or "plan",
        spec=spec,
        prepared_key=None,
        used_seconds=0.0,
        cuda_devices=[],
        earlier=[],
        cold=False,
        secrets=reveal(session, row.project_id, set(secret_names(spec).values())),
    )
    hardware = None if row.hardware is None else Hardware.model_validate(row.hardware)
    known = _known_rows(session, row.project_id, spec)
    return PlanFacts(job, hardware, row.samples, row.has_estimate, known)


def _known_rows(session: Session, project_id: str, spec: JobSpec) -> dict[str, int]:
    """Rows of uploads, which were counted when they came."""
    known = {}
    for number, source in enumerate(spec.data.train):
        if source.source in ("upload", "dataset"):
            found = locate(session, project_id, source.path, source.revision)
            values = {"project": project_id, "id": found.dataset_id}
            rows = session.scalar(_ROWS, values) if found.source == "upload" else None
            if rows is not None:
                known[f"train/{number}"] = rows
    return known


def attempt_launch(
    settings: Settings, store: Store, claim: Claim, job: JobFacts, work: Path
) -> Launch:
    """Bring everything here that the run reads, and say where it is.

    Raises StoreUnavailable, ObjectMissing, ChecksumMismatch, OSError and TrainerErrors.
    """
    if job.prepared_key is None:
        raise AssertionError(f"{job.id} was placed before its data was prepared")
    fetcher = Fetcher(settings, store, job.project_id, job.secrets)
    prepared = fetcher.prepared(job.prepared_key)
    resume = None
    if job.spec.checkpoint.resume == "auto":
        resume = Resumer(settings.home, store, job.id, work).find()
    return Launch(
        attempt_id=claim.attempt_id,
        job_id=job.id,
        job_name=job.name,
        number=claim.number,
        spec=job.spec.train_spec(),
        paths=_paths(settings, work).model_copy(
            update={
                "prepared": str(prepared),
                "model": fetcher.model(job.spec.model),
                "resume_from": str(resume) if resume else None,
            }
        ),
        threads=threads_per_slot(settings),
        devices=list(job.cuda_devices),
        labels=dict(job.spec.labels),
    )


def preparation_launch(
    settings: Settings, store: Store, job: JobFacts, work: Path, *, lend: bool = False
) -> tuple[Launch, dict[str, Lent]]:
    """The Launch that data is prepared with, and sources that it reads block by block.

    With `lend` these are all objects, so that nothing is fetched of which little is read. Raises
    as `attempt_launch` does.
    """
    fetcher = Fetcher(settings, store, job.project_id, job.secrets)
    brought = fetcher.data(job.spec.train_spec(), lend=lend)
    paths = _paths(settings, work).model_copy(
        update={"data": brought.paths, "model": fetcher.model(brought.spec.model)}
    )
    launch = Launch(
        attempt_id=f"prepare-{job.id}",
        job_id=job.id,
        job_name=job.name,
        spec=brought.spec,
        paths=paths,
        lent={key: lent.told() for key, lent in brought.lent.items()},
    )
    return launch, brought.lent


def _paths(settings: Settings, work: Path) -> Paths:
    return Paths(
        work=str(work),
        data_folders=[str(folder) for folder in settings.data_folders],
        model_folders=[str(folder) for folder in settings.model_folders],
        moved=settings.moved_folders,
    )
