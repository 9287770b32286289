"""Data sets that arrive in pieces."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = True, now: bool = False) -> sa.Column:
    default = sa.text("now()") if now else None
    return sa.Column(
        name, postgresql.TIMESTAMP(timezone=True), nullable=nullable, server_default=default
    )


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("form", postgresql.JSONB(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column(
            "status",
            sa.Text(),
            server_default=sa.text("'receiving'"),
            nullable=False,
            comment="receiving, checking, done or refused",
        ),
        sa.Column("checker", sa.Text(), nullable=True),
        _time("checking_until"),
        sa.Column("dataset_id", sa.Text(), nullable=True),
        sa.Column("problem", postgresql.JSONB(), nullable=True),
        _time("created_at", nullable=False, now=True),
        _time("expires_at", nullable=False),
        _time("finished_at"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_uploads_project_id", "uploads", ["project_id"])
    op.create_table(
        "upload_blocks",
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["uploads.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("upload_id", "start"),
    )


def downgrade() -> None:
    op.drop_table("upload_blocks")
    op.drop_table("uploads")
