"""One preparation from its claim to its end: the data of a job, and their report."""

import json
from typing import Any

from sqlalchemy.orm import Session

from app.jobs.lifecycle import FailureReason
from app.plans.pins import broken_pin
from app.preparations import service
from app.preparations.service import PreparationFailure
from worker.durably import durably
from worker.inputs import JobFacts, read_job
from worker.preparing import DataSupervisor, PreparationFailed

_KeyAndReport = tuple[str, dict[str, Any]]


class PreparationSupervisor(DataSupervisor[_KeyAndReport]):
    """Holds the lease of one job's preparation and sees it through."""

    def _read(self, session: Session) -> JobFacts:
        return read_job(session, self._id)

    def _announce(self, session: Session, job: JobFacts, key: str) -> None:
        service.announce(session, self._id, self._token, job.project_id, key)

    def _work_on(self, job: JobFacts) -> _KeyAndReport:
        _, folder, key = self._prepared(job)
        if job.spec.plan_id is not None:
            self._refuse_what_has_changed(job, key)
        report: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
        return key, report

    def _refuse_what_has_changed(self, job: JobFacts, key: str) -> None:
        """Data and model are those of the plan, wherever they lie."""
        plan = str(job.spec.plan_id)
        message = durably(lambda session: broken_pin(session, job.project_id, plan, key))
        if message is not None:
            raise PreparationFailed(PreparationFailure(FailureReason.INVALID_DATA, message))

    def _finish(self, session: Session, result: _KeyAndReport) -> None:
        key, report = result
        clean = self._redactor.data(report)
        service.finish_preparation(session, self._id, self._token, key, clean)

    def _fail(self, session: Session, failure: PreparationFailure) -> None:
        service.fail_preparation(session, self._id, self._token, failure)

    def _abandon(self, session: Session) -> None:
        service.abandon_preparation(session, self._id, self._token)
