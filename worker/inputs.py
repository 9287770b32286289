"""What one attempt runs on: the job as it was asked for, its secrets, and its Launch."""

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.attempts.service import Claim
from app.jobs.lifecycle import FailureReason
from app.jobs.references import secret_names
from app.jobs.spec import JobSpec, seconds
from app.secrets.service import reveal
from app.settings import Settings
from app.storage import Store
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
    settings: Settings, store: Store, job: JobFacts, work: Path
) -> tuple[Launch, dict[str, Lent]]:
    """The Launch that data is prepared with, and sources that it reads block by block.

    Raises as `attempt_launch` does.
    """
    fetcher = Fetcher(settings, store, job.project_id, job.secrets)
    brought = fetcher.data(job.spec.train_spec())
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
