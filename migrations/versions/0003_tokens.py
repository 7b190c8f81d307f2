"""Tokens of the service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", INT, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_us", INT, nullable=False),
        sa.Column("ends_us", INT, nullable=True),
        sa.Column("used_us", INT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("tokens")
