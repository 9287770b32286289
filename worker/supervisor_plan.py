"""One plan from its claim to its end: the first rows, all rows, and what they tell."""

import json
import logging
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from app.jobs.lifecycle import FailureReason
from app.plans import leases
from app.preparations.service import PreparationFailure
from trainer_core.plans.command import PLAN
from trainer_core.spec import Launch
from worker.durably import durably
from worker.inputs import JobFacts, PlanFacts, preparation_launch, read_plan
from worker.outages import through_outages
from worker.preparing import DataSupervisor, PreparationFailed
from worker.waiting import unless_stopped

FIRST = 1000
"""Training rows that the estimate is made of."""
MOST = 16 * 2**20
"""Bytes of what a plan says: samples of very long texts are more than anybody looks at, and than
a row of the database holds."""
_log = logging.getLogger(__name__)
_Ended = dict[str, Any]


class PlanSupervisor(DataSupervisor[_Ended | None]):
    """Holds the lease of a plan: estimates it, prepares its data as the job would, and says all.

    Of a preview the estimate's samples are all that is asked for.
    """

    def _read(self, session: Session) -> JobFacts:
        self._plan = read_plan(session, self._id)
        return self._plan.job

    def _announce(self, session: Session, job: JobFacts, key: str) -> None:
        leases.announce_plan(session, self._id, self._token, job.project_id, key)

    def _work_on(self, job: JobFacts) -> _Ended | None:
        plan = self._plan
        if plan.samples is not None:
            self._keep(self._estimated(job, plan))
            return None
        if not plan.has_estimate:
            try:
                self._keep(self._estimated(job, plan))
            except PreparationFailed as failed:  # all rows may tell otherwise
                _log.warning("no estimate: %s", failed)
        launch, folder, _ = self._prepared(job)
        paths = launch.paths.model_copy(update={"prepared": str(folder)})
        whole = launch.model_copy(update={"paths": paths, "hardware": plan.hardware, "lent": {}})
        return self._told(job, whole, ["--json"])

    def _estimated(self, job: JobFacts, plan: PlanFacts) -> _Ended:
        patience = self._settings.store_patience
        launch, lent = unless_stopped(
            self._keeper,
            lambda: through_outages(
                lambda: preparation_launch(self._settings, self._store, job, self._work, lend=True),
                patience,
            ),
            self._left(),
        )
        few = launch.model_copy(update={"hardware": plan.hardware, "known_rows": plan.known_rows})
        shown = [] if plan.samples is None else ["--samples", str(plan.samples)]
        first = FIRST if plan.samples is None else plan.samples
        with self._blocks(lent) as blocks:
            return self._told(job, few, ["--first", str(first), *shown], blocks)

    def _told(self, job: JobFacts, launch: Launch, wishes: list[str], blocks: Any = None) -> _Ended:
        path = self._write(launch)
        said = path.with_name(PLAN)
        said.unlink(missing_ok=True)
        self._run(job, launch, ["plan", str(path), *wishes], blocks)
        clean: _Ended = self._redactor.data(read(said))
        return clean

    def _keep(self, estimate: _Ended) -> None:
        durably(lambda s: leases.keep_estimate(s, self._id, self._token, estimate))

    def _abandon(self, session: Session) -> None:
        leases.abandon_plan(session, self._id, self._token)

    def _fail(self, session: Session, failure: PreparationFailure) -> None:
        leases.fail_plan(session, self._id, self._token, failure)

    def _finish(self, session: Session, ended: _Ended | None) -> None:
        leases.finish_plan(session, self._id, self._token, ended)


def read(said: Path) -> _Ended:
    """Return what a trainer says of a plan; raises PreparationFailed for more than `MOST`."""
    size = said.stat().st_size
    if size > MOST:
        message = (
            f"samples: those that were asked for are {size / 2**20:.0f} MiB, and at most "
            f"{MOST // 2**20} are shown: ask for fewer, or for shorter ones (task.max_length)"
        )
        raise PreparationFailed(PreparationFailure(FailureReason.INVALID_SPEC, message))
    found: _Ended = json.loads(said.read_bytes())
    return found
