"""Parts of specs that a project keeps by name."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def _time(name: str) -> sa.Column:
    return sa.Column(
        name, postgresql.TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("now()")
    )


def upgrade() -> None:
    op.create_table(
        "presets",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False, comment="a part of a JobSpec"),
        _time("created_at"),
        _time("updated_at"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"]),
        sa.PrimaryKeyConstraint("project_id", "name"),
    )


def downgrade() -> None:
    op.drop_table("presets")
