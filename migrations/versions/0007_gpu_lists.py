"""The batches of agents that list GPUs, found without looking at the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_agent_batches_lists",
        "agent_batches",
        ["day", "boot", "seq"],
        sqlite_where=sa.text("has_gpus = 1"),
        postgresql_where=sa.text("has_gpus = 1"),
    )


def downgrade() -> None:
    op.drop_index("ix_agent_batches_lists", "agent_batches")
