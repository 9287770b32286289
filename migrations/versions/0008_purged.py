"""Which retired checkpoints have left the object store."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Those retired before stay unmarked: nobody knows which of them are gone, so all are looked at.
    purged = sa.Column("purged_at", postgresql.TIMESTAMP(timezone=True), nullable=True)
    op.add_column("checkpoints", purged)
    op.create_index(
        "ix_checkpoints_unpurged",
        "checkpoints",
        ["id"],
        postgresql_where=sa.text("deleted_at IS NOT NULL AND purged_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_checkpoints_unpurged", table_name="checkpoints")
    op.drop_column("checkpoints", "purged_at")
