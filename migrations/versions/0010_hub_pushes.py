"""What is to be pushed to a hub, and how far that has come."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = True) -> sa.Column:
    default = None if nullable else sa.text("now()")
    return sa.Column(
        name, postgresql.TIMESTAMP(timezone=True), nullable=nullable, server_default=default
    )


def upgrade() -> None:
    op.create_table(
        "hub_pushes",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False, comment="checkpoint or model"),
        sa.Column("step", sa.Integer(), nullable=True, comment="of a checkpoint"),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("manifest_sha256", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Text(),
            server_default=sa.text("'pending'"),
            nullable=False,
            comment="pending, pushed, failed or dropped",
        ),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("commit", sa.Text(), nullable=True, comment="of the newest push that arrived"),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_token", sa.Text(), nullable=True),
        _time("lease_expires_at"),
        sa.Column("leased_prefix", sa.Text(), nullable=True, comment="what its holder reads"),
        _time("next_at", nullable=False),
        _time("failing_since"),
        _time("pushed_at"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("job_id"),
        sa.CheckConstraint(
            "state IN ('pending', 'pushed', 'failed', 'dropped')", name="ck_hub_pushes_state"
        ),
    )
    op.create_index("ix_hub_pushes_project_id", "hub_pushes", ["project_id"])
    op.create_index(
        "ix_hub_pushes_pending",
        "hub_pushes",
        ["next_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )


def downgrade() -> None:
    op.drop_table("hub_pushes")
