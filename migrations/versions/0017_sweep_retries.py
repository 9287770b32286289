"""A sweep that cannot be finished now is tried again later, behind the others."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_TIME = postgresql.TIMESTAMP(timezone=True)


def upgrade() -> None:
    op.add_column(
        "sweeps",
        sa.Column(
            "finish_at",
            _TIME,
            server_default=sa.text("now()"),
            nullable=False,
            comment="not finished before, once all runs have ended",
        ),
    )
    op.add_column(
        "sweeps",
        sa.Column(
            "damaged_since",
            _TIME,
            nullable=True,
            comment="when metrics of a run were first found damaged",
        ),
    )


def downgrade() -> None:
    op.drop_column("sweeps", "damaged_since")
    op.drop_column("sweeps", "finish_at")
