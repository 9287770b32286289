"""Which prepared data a preparation is about to use, and what housekeeping has removed."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "preparations",
        sa.Column(
            "key", sa.Text(), nullable=True, comment="prepared data that it is about to use"
        ),
    )
    op.create_table(
        "housekeeping_runs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("scanned", sa.Boolean(), nullable=False),
        sa.Column("report", postgresql.JSONB(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column(
            "finished_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_housekeeping_runs_finished_at", "housekeeping_runs", ["finished_at"])


def downgrade() -> None:
    op.drop_index("ix_housekeeping_runs_finished_at", table_name="housekeeping_runs")
    op.drop_table("housekeeping_runs")
    op.drop_column("preparations", "key")
