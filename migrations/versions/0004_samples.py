"""Samples of GPUs and processes, and what a shard says of its memory."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

from ledger.store import guards

revision = "0004"
down_revision = "0006"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

APPEND_ONLY = (
    "agents",
    "agent_boots",
    "gpus",
    "agent_batches",
    "gpu_lists",
    "gpu_periods",
    "gpu_processes",
    "gpu_rests",
    "process_periods",
    "agent_troubles",
)

SHARD_COLUMNS = ("pid", "kv_bytes", "weights_bytes")


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, INT, autoincrement=False, nullable=nullable)


def _ints(*names: str, nullable: bool = True) -> list[sa.Column[int]]:
    return [_int(name, nullable=nullable) for name in names]


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _blob(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


def _spreads(*names: str) -> list[sa.Column[int]]:
    return _ints(*(f"{name}_{part}" for name in names for part in ("least", "mean", "most")))


def _marks() -> list[sa.Column[int]]:
    return _ints("used_mark_1", "used_mark_2", "used_mark_3")


def _partitioned(name: str, *columns: sa.Column) -> None:
    keys = ("day", "boot", "seq", "pos")
    op.create_table(
        name,
        *[_int(key) for key in keys],
        *columns,
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
        postgresql_partition_by="LIST (day)",
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )


def upgrade() -> None:
    for name in SHARD_COLUMNS:
        op.add_column("pool_shards", sa.Column(name, INT, nullable=True))
    described = ("source_id", "origin", "cluster", "namespace", "pod", "host", "software", "driver")
    op.create_table(
        "agents",
        sa.Column("id", INT, nullable=False),
        *[_text(name) for name in described],
        sa.PrimaryKeyConstraint("id", name="pk_agents"),
        sa.UniqueConstraint(*described, name="uq_agents_all"),
        sqlite_strict=True,
    )
    op.create_table(
        "agent_boots",
        sa.Column("id", INT, nullable=False),
        _text("source_id"),
        _text("boot_id"),
        *_ints("anchor_us", "started_us", "received_us", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_agent_boots"),
        sa.UniqueConstraint("source_id", "boot_id", name="uq_agent_boots_source_id_boot_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "gpus",
        sa.Column("id", INT, nullable=False),
        _text("uuid"),
        sa.PrimaryKeyConstraint("id", name="pk_gpus"),
        sa.UniqueConstraint("uuid", name="uq_gpus_uuid"),
        sqlite_strict=True,
    )
    op.create_table(
        "agent_batches",
        *_ints("boot", "seq", "day", "source", "start_us", "end_us", "skew_us", nullable=False),
        *_ints("has_gpus", "received_us", "ahead", "missing_before", nullable=False),
        _blob("digest"),
        _blob("prev"),
        _blob("kept_digest"),
        sa.PrimaryKeyConstraint("boot", "seq", name="pk_agent_batches"),
        sa.ForeignKeyConstraint(["boot"], ["agent_boots.id"], name="fk_agent_batches_boot"),
        sa.ForeignKeyConstraint(["source"], ["agents.id"], name="fk_agent_batches_source"),
        sqlite_strict=True,
    )
    op.create_index("ix_agent_batches_boot_start_us", "agent_batches", ["boot", "start_us"])
    op.create_index("ix_agent_batches_day", "agent_batches", ["day"])
    _partitioned(
        "gpu_lists",
        *_ints("gpu", "index_no", nullable=False),
        _text("model"),
        _text("parent"),
        *_ints("instance", "memory_bytes"),
    )
    _partitioned(
        "gpu_periods",
        *_ints("gpu", "readings", nullable=False),
        *_spreads("used_bytes", "free_bytes", "total_bytes", "reserved_bytes"),
        *_spreads("busy_ppm", "memory_busy_ppm", "occupancy_ppm", "power_mw"),
        *_marks(),
        *_ints("ecc_corrected", "ecc_uncorrected"),
        _text("throttles", nullable=True),
    )
    _partitioned(
        "gpu_processes",
        *_ints("gpu", "pid", nullable=False),
        _text("engagement"),
        _int("readings"),
        *_spreads("used_bytes"),
        *_marks(),
    )
    _partitioned("gpu_rests", _int("gpu"), *_spreads("rest_bytes"), _int("unmeasured"))
    _partitioned(
        "process_periods",
        _int("pid"),
        _text("name"),
        _text("watch"),
        _text("busiest"),
        *_ints("inner_pid", "started_us", "threads", "rss_bytes", "cpu_us", "busiest_us", "waiting_threads"),
        *_ints("workers", "workers_busy", "queued"),
    )
    _partitioned("agent_troubles", _text("reason"), _text("gpu"), _int("count"))
    dialect = op.get_context().dialect.name
    for table in APPEND_ONLY:
        for statement in guards.create_guard(dialect, table):
            op.execute(statement)


def downgrade() -> None:
    for name in reversed(APPEND_ONLY):
        op.drop_table(name)
    for name in SHARD_COLUMNS:
        op.drop_column("pool_shards", name)
