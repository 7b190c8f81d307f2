"""Why a target that is scraped cannot be read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "scrape_failures",
        sa.Column("target", INT, nullable=False, autoincrement=False),
        sa.Column("since_us", INT, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("target", name="pk_scrape_failures"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("scrape_failures")
