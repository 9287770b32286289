"""Which checkpoints of a job stay: the newest few, and one that is on its way to a hub."""

from sqlalchemy import text
from sqlalchemy.orm import Session

FEWEST_CHECKPOINTS = 2
_RETIRE = text(
    """
    UPDATE checkpoints SET deleted_at = now() WHERE id IN (
        SELECT id FROM (
            SELECT c.id, c.prefix, row_number() OVER (ORDER BY a.number DESC, c.step DESC) AS place
            FROM checkpoints c JOIN attempts a ON a.id = c.attempt_id
            WHERE c.job_id = :job_id AND c.deleted_at IS NULL) kept
        WHERE place > (
            SELECT greatest(:fewest, CAST(spec #>> '{checkpoint,save_total_limit}' AS integer))
            FROM jobs WHERE id = :job_id)
            AND NOT EXISTS (SELECT FROM hub_pushes p WHERE p.job_id = :job_id
                AND p.leased_prefix = kept.prefix AND p.lease_expires_at > now()))
    RETURNING prefix
    """
)


def retire(session: Session, job_id: str) -> list[str]:
    """Retire all but the newest `save_total_limit` (at least two); returns their prefixes.

    One that is being pushed stays until that push ends. The caller holds the job's row.
    """
    values = {"job_id": job_id, "fewest": FEWEST_CHECKPOINTS}
    return list(session.execute(_RETIRE, values).scalars())
