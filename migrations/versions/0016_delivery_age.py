"""Deliveries of webhooks have an age after which they are given up, and are found by an index."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_TABLE = "webhook_deliveries"
_PENDING = "status = 'pending'"


def _index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, _TABLE, columns, postgresql_where=sa.text(where))


def upgrade() -> None:
    # What waits at an upgrade has its whole time once more.
    op.add_column(
        _TABLE,
        sa.Column(
            "pending_since",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="when it was last asked for",
        ),
    )
    op.drop_index("ix_webhook_deliveries_pending", _TABLE)
    _index(
        "ix_webhook_deliveries_in_order", ["webhook_id", "number"], f"{_PENDING} AND failures < 5"
    )
    _index("ix_webhook_deliveries_beside", ["webhook_id", "next_at"], f"{_PENDING} AND failures >= 5")
    _index("ix_webhook_deliveries_age", ["pending_since"], _PENDING)


def downgrade() -> None:
    for name in ("age", "beside", "in_order"):
        op.drop_index(f"ix_webhook_deliveries_{name}", _TABLE)
    _index("ix_webhook_deliveries_pending", ["webhook_id", "number"], _PENDING)
    op.drop_column(_TABLE, "pending_since")
