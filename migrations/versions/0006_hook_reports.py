"""What a hook says of itself, with each batch."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("batches", sa.Column("hook", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("batches", "hook")
