"""Events of ended jobs move to the object store; what a job has logged is counted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Rows leave only when a range in the store holds them, and ranges follow each other without a gap.
GUARDS = """
CREATE FUNCTION polar_guard_archive() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE covered bigint;
DECLARE reached bigint;
BEGIN
    SELECT coalesce(sum(last_seq - first_seq + 1), 0), coalesce(max(last_seq), 0)
        INTO covered, reached FROM event_ranges WHERE job_id = NEW.id;
    IF NEW.archived_seq < OLD.archived_seq OR NEW.archived_seq > NEW.last_seq
        OR covered <> NEW.archived_seq OR reached <> NEW.archived_seq THEN
        RAISE EXCEPTION 'job %: its archived ranges do not hold events 1..%', NEW.id, NEW.archived_seq
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER guard_archive BEFORE UPDATE OF archived_seq ON jobs
    FOR EACH ROW WHEN (OLD.archived_seq IS DISTINCT FROM NEW.archived_seq)
    EXECUTE FUNCTION polar_guard_archive();

CREATE FUNCTION polar_guard_events_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM gone JOIN jobs ON jobs.id = gone.job_id WHERE gone.seq > jobs.archived_seq
    ) THEN
        RAISE EXCEPTION 'an event of a job leaves only for the archive'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER only_archived_leave AFTER DELETE ON job_events REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION polar_guard_events_gone();
"""


def upgrade() -> None:
    for name in ("archived_seq", "log_lines", "log_bytes"):
        column = sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        op.add_column("jobs", column)
    op.create_table(
        "event_ranges",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("counts", postgresql.JSONB(), nullable=False, comment="events of each type"),
        sa.Column("last_xid", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("job_id", "first_seq"),
        sa.CheckConstraint("first_seq >= 1 AND last_seq >= first_seq", name="ck_event_ranges_order"),
    )
    op.create_index("ix_event_ranges_xid", "event_ranges", ["project_id", "last_xid"])
    op.create_index(
        "ix_jobs_unarchived",
        "jobs",
        ["finished_at"],
        postgresql_where=sa.text("archived_seq < last_seq AND finished_at IS NOT NULL"),
    )
    op.execute(GUARDS)


def downgrade() -> None:
    op.execute(
        """
        DROP TRIGGER only_archived_leave ON job_events;
        DROP TRIGGER guard_archive ON jobs;
        DROP FUNCTION polar_guard_events_gone, polar_guard_archive;
        """
    )
    op.drop_index("ix_jobs_unarchived", table_name="jobs")
    op.drop_index("ix_event_ranges_xid", table_name="event_ranges")
    op.drop_table("event_ranges")
    for name in ("log_bytes", "log_lines", "archived_seq"):
        op.drop_column("jobs", name)
