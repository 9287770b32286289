"""Sweeps: jobs that differ in some fields, and the best of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = True) -> sa.Column:
    default = None if nullable else sa.text("now()")
    return sa.Column(
        name, postgresql.TIMESTAMP(timezone=True), nullable=nullable, server_default=default
    )


def _json(name: str, *, nullable: bool = True, comment: str | None = None) -> sa.Column:
    return sa.Column(name, postgresql.JSONB(), nullable=nullable, comment=comment)


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        _json("spec", nullable=False, comment="what its runs have in common, as it was given"),
        _json("overrides", nullable=False, comment="of each run, in their order"),
        _json("metric", nullable=False, comment="name, goal and by"),
        sa.Column("max_concurrent", sa.Integer(), nullable=True),
        sa.Column("register_best", sa.Boolean(), nullable=False),
        sa.Column(
            "status",
            sa.Text(),
            server_default=sa.text("'running'"),
            nullable=False,
            comment="running, finished or cancelled",
        ),
        _json("values", comment="of the metric at the end, by the number of the run"),
        _json("best", comment="job_id, number, value and model of the best run"),
        sa.Column("reason", sa.Text(), nullable=True, comment="why there is no best, or no model"),
        _time("cancel_requested_at"),
        _time("created_at", nullable=False),
        _time("finished_at"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint(
            "status IN ('running', 'finished', 'cancelled')", name="ck_sweeps_status"
        ),
    )
    op.create_index("ix_sweeps_page", "sweeps", ["project_id", "id"])
    op.create_index("ix_sweeps_project_id", "sweeps", ["project_id"])
    op.create_index(
        "ix_sweeps_running", "sweeps", ["id"], postgresql_where=sa.text("status = 'running'")
    )
    op.add_column("jobs", sa.Column("sweep_id", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("sweep_run", sa.Integer(), nullable=True))
    op.add_column("jobs", _json("unregistered", comment="the model version that it could become"))
    op.create_foreign_key("jobs_sweep_id_fkey", "jobs", "sweeps", ["sweep_id"], ["id"])
    op.create_index(
        "ix_jobs_sweep",
        "jobs",
        ["sweep_id", "sweep_run"],
        postgresql_where=sa.text("sweep_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_sweep", "jobs")
    op.drop_constraint("jobs_sweep_id_fkey", "jobs")
    for name in ("unregistered", "sweep_run", "sweep_id"):
        op.drop_column("jobs", name)
    op.drop_table("sweeps")
