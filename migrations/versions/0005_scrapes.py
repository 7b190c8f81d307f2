"""Engines that are looked at from outside: where, and what they said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

from ledger.store import guards

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

CONFIGURATION = ("scrape_targets",)
FACTS = ("collectors", "scrape_rounds", "scraped_periods")


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, INT, autoincrement=False, nullable=nullable)


def _ints(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [_int(name, nullable=nullable) for name in names]


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "scrape_targets",
        sa.Column("id", INT, nullable=False),
        _text("engine"),
        _text("url"),
        _text("kind"),
        _int("active"),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_scrape_targets"),
        sqlite_strict=True,
    )
    op.create_table(
        "collectors",
        sa.Column("id", INT, nullable=False),
        _text("collector"),
        _text("host"),
        sa.PrimaryKeyConstraint("id", name="pk_collectors"),
        sa.UniqueConstraint("collector", name="uq_collectors_collector"),
        sqlite_strict=True,
    )
    op.create_table(
        "scrape_rounds",
        *_ints("boot", "seq", "day", "start_us", "targets", "written_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("boot", "seq", name="pk_scrape_rounds"),
        sa.ForeignKeyConstraint(["boot"], ["collectors.id"], name="fk_scrape_rounds_boot"),
        sqlite_strict=True,
    )
    op.create_index("ix_scrape_rounds_start_us", "scrape_rounds", ["start_us"])
    op.create_index("ix_scrape_rounds_day", "scrape_rounds", ["day"])
    keys = ("day", "boot", "seq", "pos")
    op.create_table(
        "scraped_periods",
        *_ints(*keys),
        *_ints("target", "start_us", "end_us", "busy_us"),
        _text("kind"),
        _text("model"),
        *_ints("scrapes", "failures", "gap_us"),
        *_ints("started_us", "running_us", "waiting_us", "kv_active_ppm", "kv_cached_ppm", nullable=True),
        *_ints("capacity_tokens", "block_size", nullable=True),
        *_ints("prompt_tokens", "computed_tokens", "cached_tokens", "transferred_tokens", nullable=True),
        *_ints("output_tokens", "preemptions", "prefix_queries", "prefix_hits", nullable=True),
        _text("finished", nullable=True),
        _text("latencies"),
        _text("signs"),
        sa.PrimaryKeyConstraint(*keys, name="pk_scraped_periods"),
        postgresql_partition_by="LIST (day)",
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "scraped_hours",
        *_ints("target", "start_us", "records"),
        sa.PrimaryKeyConstraint("target", "start_us", name="pk_scraped_hours"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_scraped_hours_start_us", "scraped_hours", ["start_us"])
    dialect = op.get_context().dialect.name
    for table in CONFIGURATION:
        for statement in guards.create_guard(dialect, table, delete=True):
            op.execute(statement)
    for table in FACTS:
        for statement in guards.create_guard(dialect, table):
            op.execute(statement)


def downgrade() -> None:
    for name in reversed((*CONFIGURATION, *FACTS, "scraped_hours")):
        op.drop_table(name)
