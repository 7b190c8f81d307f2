"""The fact tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

from ledger.store import guards

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, INT, autoincrement=False, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _blob(name: str, *, nullable: bool = False) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=nullable)


def _partitioned(name: str, *columns: sa.Column, sub: bool = False) -> None:
    keys = ("day", "boot", "seq", "pos", "sub") if sub else ("day", "boot", "seq", "pos")
    op.create_table(
        name,
        *[_int(key) for key in keys],
        *columns,
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
        postgresql_partition_by="LIST (day)",
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )


APPEND_ONLY = (
    "ledger_origin",
    "sources",
    "boots",
    "dimensions",
    "batches",
    "lost_periods",
    "pool_opens",
    "pool_groups",
    "pool_shards",
    "pool_closes",
    "pool_periods",
    "group_periods",
    "session_periods",
    "standing_counts",
    "admissions",
    "request_records",
    "request_uses",
    "request_holdings",
    "histograms",
)


def upgrade() -> None:
    _partitioned(
        "admissions",
        _text("request"),
        _text("parent", nullable=True),
        _int("dims"),
        _int("prompt_tokens"),
        _int("arrived_us"),
    )
    op.create_table(
        "boots",
        sa.Column("id", INT, nullable=False),
        _text("engine"),
        _text("boot_id"),
        _int("anchor_us"),
        _int("started_us"),
        _int("received_us"),
        sa.PrimaryKeyConstraint("id", name="pk_boots"),
        sa.UniqueConstraint("engine", "boot_id", name="uq_boots_engine_boot_id"),
        sqlite_strict=True,
    )
    op.create_table(
        "dimensions",
        sa.Column("id", INT, nullable=False),
        _text("tenant"),
        _text("session"),
        _text("model"),
        _text("adapter"),
        _text("scenario"),
        _int("priority"),
        sa.PrimaryKeyConstraint("id", name="pk_dimensions"),
        sa.UniqueConstraint(
            "tenant",
            "session",
            "model",
            "adapter",
            "scenario",
            "priority",
            name="uq_dimensions_tenant_session_model_adapter_scenario_priority",
        ),
        sqlite_strict=True,
    )
    _partitioned("group_periods", _int("group_no"), _int("active_block_us"), sub=True)
    _partitioned("histograms", _text("name"), _text("labels"), _text("buckets"), _int("count"), _int("total"))
    op.create_table(
        "ingest_counts",
        _int("day"),
        _text("reason"),
        _int("count"),
        sa.PrimaryKeyConstraint("day", "reason", name="pk_ingest_counts"),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_origin",
        _int("one"),
        _text("origin"),
        _int("fixed_us"),
        sa.PrimaryKeyConstraint("one", name="pk_ledger_origin"),
        sa.CheckConstraint("one = 1", name="single_row"),
        sqlite_strict=True,
    )
    op.create_table(
        "lost_periods",
        _int("boot"),
        _int("seq"),
        _int("winner_boot"),
        _int("winner_seq"),
        _int("noticed_us"),
        sa.PrimaryKeyConstraint("boot", "seq", name="pk_lost_periods"),
        sqlite_strict=True,
    )
    op.create_table(
        "pool_closes",
        _int("boot"),
        _int("seq"),
        _int("pos"),
        _text("pool"),
        _int("at_us"),
        _text("reason"),
        sa.PrimaryKeyConstraint("boot", "seq", "pos", name="pk_pool_closes"),
        sqlite_strict=True,
    )
    op.create_table(
        "pool_groups",
        _int("boot"),
        _int("seq"),
        _int("pos"),
        _int("sub"),
        _int("block_size"),
        _text("kind"),
        sa.PrimaryKeyConstraint("boot", "seq", "pos", "sub", name="pk_pool_groups"),
        sqlite_strict=True,
    )
    op.create_table(
        "pool_opens",
        _int("boot"),
        _int("seq"),
        _int("pos"),
        _text("pool"),
        _int("at_us"),
        _int("blocks"),
        _text("model"),
        _int("paying"),
        sa.PrimaryKeyConstraint("boot", "seq", "pos", name="pk_pool_opens"),
        sqlite_strict=True,
    )
    _partitioned(
        "pool_periods",
        _text("pool"),
        _int("blocks"),
        _int("active_block_us"),
        _int("cached_block_us"),
        _int("free_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        _int("active_blocks_end"),
        _int("cached_blocks_end"),
        _int("steps"),
        _int("step_us"),
    )
    op.create_table(
        "pool_shards",
        _int("boot"),
        _int("seq"),
        _int("pos"),
        _int("sub"),
        _int("dp"),
        _int("pp"),
        _int("tp"),
        _text("gpu_uuid"),
        _text("gpu_model"),
        _int("share_ppm", nullable=True),
        sa.PrimaryKeyConstraint("boot", "seq", "pos", "sub", name="pk_pool_shards"),
        sqlite_strict=True,
    )
    op.create_table(
        "quarantine",
        sa.Column("id", INT, nullable=False),
        _int("received_us"),
        _text("engine"),
        _text("boot_id"),
        _int("seq", nullable=True),
        _text("reason"),
        _text("detail"),
        _int("bytes"),
        _blob("digest"),
        _blob("raw"),
        sa.PrimaryKeyConstraint("id", name="pk_quarantine"),
        sa.UniqueConstraint("digest", name="uq_quarantine_digest"),
        sqlite_strict=True,
    )
    _partitioned(
        "request_holdings",
        _text("pool"),
        _int("active_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        sub=True,
    )
    _partitioned(
        "request_records",
        _text("request"),
        _text("parent", nullable=True),
        _int("dims"),
        _text("pool"),
        _text("outcome"),
        _text("finish_reason"),
        _int("prompt_tokens"),
        _int("computed_tokens"),
        _int("cached_own_tokens"),
        _int("cached_others_tokens"),
        _int("transferred_tokens"),
        _int("unprocessed_tokens"),
        _int("recomputed_tokens"),
        _int("output_tokens"),
        _int("drafted_tokens"),
        _int("rejected_tokens"),
        _int("preempted_kv_full"),
        _int("preempted_priority"),
        _int("preempted_reset"),
        _int("preempted_other"),
        _int("active_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        _int("compute_us"),
        _int("peak_blocks"),
        _int("arrived_us"),
        _int("scheduled_us", nullable=True),
        _int("first_token_us", nullable=True),
        _int("last_token_us", nullable=True),
        _int("ended_us"),
    )
    _partitioned("request_uses", _int("start_us"), _int("active_block_us"), _int("compute_us"), sub=True)
    _partitioned(
        "session_periods",
        _text("pool"),
        _int("dims"),
        _int("active_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        _int("cached_block_us"),
        _int("cached_blocks_end"),
        _int("compute_us"),
        _int("computed_tokens"),
        _int("cached_own_tokens"),
        _int("cached_others_tokens"),
        _int("transferred_tokens"),
        _int("unprocessed_tokens"),
        _int("recomputed_tokens"),
        _int("output_tokens"),
        _int("drafted_tokens"),
        _int("rejected_tokens"),
        _int("preempted_kv_full"),
        _int("preempted_priority"),
        _int("preempted_reset"),
        _int("preempted_other"),
    )
    op.create_table(
        "sources",
        sa.Column("id", INT, nullable=False),
        _text("engine"),
        _text("origin"),
        _text("cluster"),
        _text("namespace"),
        _text("pod"),
        _text("host"),
        _text("software"),
        sa.PrimaryKeyConstraint("id", name="pk_sources"),
        sa.UniqueConstraint(
            "engine",
            "origin",
            "cluster",
            "namespace",
            "pod",
            "host",
            "software",
            name="uq_sources_engine_origin_cluster_namespace_pod_host_software",
        ),
        sqlite_strict=True,
    )
    _partitioned("standing_counts", _text("pool"), _int("dims"), _int("cached_blocks"))
    op.create_table(
        "batches",
        _int("boot"),
        _int("seq"),
        _int("day"),
        _int("source"),
        _int("start_us"),
        _int("end_us"),
        _int("skew_us"),
        _int("has_standing"),
        _int("received_us"),
        _int("ahead"),
        _int("missing_before"),
        _blob("digest"),
        _blob("prev"),
        _blob("kept_digest"),
        sa.PrimaryKeyConstraint("boot", "seq", name="pk_batches"),
        sa.ForeignKeyConstraint(["boot"], ["boots.id"], name="fk_batches_boot"),
        sa.ForeignKeyConstraint(["source"], ["sources.id"], name="fk_batches_source"),
        sqlite_strict=True,
    )
    op.create_index("ix_batches_boot_start_us", "batches", ["boot", "start_us"])
    op.create_index("ix_batches_day", "batches", ["day"])

    dialect = op.get_context().dialect.name
    for statement in guards.create_function(dialect):
        op.execute(statement)
    for table in APPEND_ONLY:
        for statement in guards.create_guard(dialect, table):
            op.execute(statement)


def downgrade() -> None:
    op.drop_table("batches")
    op.drop_table("standing_counts")
    op.drop_table("sources")
    op.drop_table("session_periods")
    op.drop_table("request_uses")
    op.drop_table("request_records")
    op.drop_table("request_holdings")
    op.drop_table("quarantine")
    op.drop_table("pool_shards")
    op.drop_table("pool_periods")
    op.drop_table("pool_opens")
    op.drop_table("pool_groups")
    op.drop_table("pool_closes")
    op.drop_table("lost_periods")
    op.drop_table("ledger_origin")
    op.drop_table("ingest_counts")
    op.drop_table("histograms")
    op.drop_table("group_periods")
    op.drop_table("dimensions")
    op.drop_table("boots")
    op.drop_table("admissions")
    for statement in guards.drop_function(op.get_context().dialect.name):
        op.execute(statement)
