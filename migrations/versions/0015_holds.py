"""Devices that are kept for a project's next job; jobs are found by the run that XGen named."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _time(name: str, *, default: str | None = None, nullable: bool = True) -> sa.Column:
    said = None if default is None else sa.text(default)
    kind = postgresql.TIMESTAMP(timezone=True)
    return sa.Column(name, kind, nullable=nullable, server_default=said)


def upgrade() -> None:
    op.create_table(
        "holds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("device", sa.Integer(), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True, comment="name of what came with the call"),
        _time("created_at", default="now()", nullable=False),
        _time("expires_at", nullable=False),
        _time("ended_at"),
        sa.Column(
            "reason", sa.Text(), nullable=True, comment="used, given_back, over or host_gone"
        ),
        sa.Column("attempt_id", sa.Text(), nullable=True, comment="that used it"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("(ended_at IS NULL) = (reason IS NULL)", name="ck_holds_reason"),
    )
    op.create_index("ix_holds_project_id", "holds", ["project_id"])
    op.create_index(
        "uq_holds_device",
        "holds",
        ["worker_id", "device"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_xgen_run", "jobs", ["project_id", sa.text("(spec #>> '{labels,xgen/run}')")]
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_xgen_run", "jobs")
    op.drop_table("holds")
