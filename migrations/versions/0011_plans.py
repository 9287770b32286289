"""What jobs will do and need, worked out before they are submitted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
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
        "plans",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=False, comment="hash of what is asked for"),
        _json("spec", nullable=False),
        _json("resolved", nullable=False),
        _json("warnings", nullable=False),
        _json("hardware", comment="null: unknown, no host was online"),
        _json("found", nullable=False, comment="what data and model were, by field"),
        sa.Column("samples", sa.Integer(), nullable=True, comment="of a preview: how many"),
        sa.Column(
            "status",
            sa.Text(),
            server_default=sa.text("'waiting'"),
            nullable=False,
            comment="waiting, running, done or failed",
        ),
        _json("estimate", comment="by the first rows"),
        _json("exact", comment="by all rows"),
        sa.Column("key", sa.Text(), nullable=True, comment="of the prepared data"),
        _json("problem", comment="reason and message of a failure"),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("lease_token", sa.Text(), nullable=True),
        _time("lease_expires_at"),
        _time("hinted_at"),
        _time("created_at", nullable=False),
        _time("expires_at", nullable=False),
        _time("finished_at"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint(
            "status IN ('waiting', 'running', 'done', 'failed')", name="ck_plans_status"
        ),
    )
    op.create_index("ix_plans_project_id", "plans", ["project_id"])
    op.create_index("ix_plans_identity", "plans", ["project_id", "identity"])


def downgrade() -> None:
    op.drop_table("plans")
