"""What XGen asks of a run in MLflow: told by what this service mirrors there, without a call.

So no address that a browser sent is ever connected to, and a run is there before MLflow has it.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.errors import FieldProblem, InvalidPayload, NotFound
from app.jobs import view
from app.jobs.lifecycle import Status
from app.jobs.schemas import JobOut
from app.jobs.service import find_job
from app.models import Job, MlflowRun
from app.settings import get_settings
from app.tracking.convert import CLOSED, flatten
from app.xgen.mapping.tracking import reference_of
from app.xgen.schemas import MlflowInfo, MlflowRequest
from app.xgen.service import find
from app.xgen.urls import refusal_of_mlflow
from app.xgen.words import WORD_OF


def run_info(session: Session, project_id: str, asked: MlflowRequest) -> MlflowInfo:
    """Return what is known of a run, by its id in MLflow, its job's id or `mlflow_run_id`.

    Raises InvalidPayload for an address that is not this service's, NotFound for a run of nobody
    in the project, and for one of another experiment than the one that is named.
    """
    if reason := refusal_of_mlflow(asked.mlflow_url, get_settings()):
        message = f"mlflow_url {reason}"
        raise InvalidPayload([FieldProblem(pointer="/mlflow_url", message=message)])
    job = view.of_job(session, find_job(session, project_id, _job_id(session, project_id, asked)))
    info = _info(job)
    if asked.mlflow_exp_id not in ("", info.experiment_id, info.experiment_name):
        raise NotFound(
            f"run {asked.mlflow_run_id} is in experiment {info.experiment_name!r}, not in"
            f" {asked.mlflow_exp_id!r}: leave mlflow_exp_id empty, or name that one",
            "run_not_found",
        )
    return info


def _job_id(session: Session, project_id: str, asked: MlflowRequest) -> str:
    query = (
        select(Job.id)
        .join(MlflowRun, MlflowRun.job_id == Job.id)
        .where(Job.project_id == project_id, MlflowRun.run_id == asked.mlflow_run_id)
    )
    return session.scalar(query) or find(session, project_id, asked.mlflow_run_id)


def _info(job: JobOut) -> MlflowInfo:
    run, status = job.external_refs.mlflow, Status(job.status)
    there = run is not None and run.run_id is not None
    tracking = job.resolved["tracking"]["mlflow"]
    return MlflowInfo(
        job_id=job.id,
        mlflow_run_id=reference_of(job.spec),
        status=WORD_OF[status],
        polar_status=status,
        run_id=run and run.run_id,
        run_name=tracking.get("run_name") or job.name,
        run_status=CLOSED.get(status, "RUNNING" if there else "SCHEDULED"),
        experiment_id=run and run.experiment_id,
        experiment_name=tracking["experiment"],
        url=run and run.url,
        metrics=job.latest_metrics or {},
        params=flatten(job.resolved),
        tags=tracking.get("tags", {}),
        start_time=job.started_at,
        end_time=job.finished_at,
    )
