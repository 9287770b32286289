"""Hosts whose operator wants them back at once."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "workers",
        sa.Column(
            "hand_back",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="draining, and what runs there moves elsewhere now",
        ),
    )


def downgrade() -> None:
    op.drop_column("workers", "hand_back")
