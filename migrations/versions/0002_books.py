"""The tables of the books."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

from ledger.store import guards

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INT = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")

TABLES = (
    "settings",
    "tenants",
    "assets",
    "prices",
    "assignments",
    "transactions",
    "postings",
    "statements",
    "basis_lines",
    "session_costs",
    "memo_lines",
    "segments",
    "usage_hours",
    "pool_hours",
    "settled_months",
    "findings",
)

APPEND_ONLY = (
    "settings",
    "tenants",
    "assets",
    "prices",
    "assignments",
    "transactions",
    "postings",
    "statements",
    "findings",
)


def _int(name: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, INT, autoincrement=False, nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "settings",
        sa.Column("id", INT, nullable=False),
        _text("name"),
        _text("month"),
        _text("value"),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_settings"),
        sqlite_strict=True,
    )
    op.create_table(
        "tenants",
        sa.Column("id", INT, nullable=False),
        _text("tenant"),
        _text("display"),
        _text("cost_center"),
        _text("labels"),
        _text("profile"),
        _text("zone"),
        _text("contacts"),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sqlite_strict=True,
    )
    op.create_table(
        "assets",
        sa.Column("id", INT, nullable=False),
        _text("asset_id"),
        _text("kind"),
        _text("model"),
        _text("uuid"),
        _int("memory_bytes", nullable=True),
        _text("cluster"),
        _text("capacity_type"),
        _int("valid_from_us"),
        _int("valid_to_us", nullable=True),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_assets"),
        sqlite_strict=True,
    )
    op.create_table(
        "prices",
        sa.Column("id", INT, nullable=False),
        _text("asset_id"),
        _text("model"),
        _text("cluster"),
        _text("capacity_type"),
        _text("currency"),
        _int("nanos_per_hour"),
        _int("valid_from_us"),
        _int("valid_to_us", nullable=True),
        _int("supersedes", nullable=True),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_prices"),
        sqlite_strict=True,
    )
    op.create_table(
        "assignments",
        sa.Column("id", INT, nullable=False),
        _text("asset_id"),
        _text("engine"),
        _int("share_ppm"),
        _int("valid_from_us"),
        _int("valid_to_us", nullable=True),
        _int("supersedes", nullable=True),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_assignments"),
        sqlite_strict=True,
    )
    op.create_table(
        "transactions",
        _text("transaction_id"),
        _text("asset_group"),
        _int("start_us"),
        _int("end_us"),
        _int("revision"),
        _text("month"),
        _text("booked_month"),
        _text("currency"),
        _int("bill_nanos"),
        _int("batches"),
        _text("frame_digest"),
        _text("inputs_digest"),
        _text("reverses", nullable=True),
        _int("booked_us"),
        _int("created_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("transaction_id", name="pk_transactions"),
        sa.UniqueConstraint(
            "asset_group", "start_us", "revision", name="uq_transactions_asset_group_start_us_revision"
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_transactions_booked_month", "transactions", ["booked_month"])
    op.create_index("ix_transactions_month", "transactions", ["month"])
    op.create_table(
        "postings",
        _text("transaction_id"),
        _int("line"),
        _text("side"),
        _text("account"),
        _text("kind"),
        _text("tenant"),
        _int("amount_nanos"),
        _int("asset_us", nullable=True),
        _int("reversal"),
        sa.PrimaryKeyConstraint("transaction_id", "line", name="pk_postings"),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "statements",
        _text("month"),
        _text("timezone"),
        _text("currency"),
        _text("basis"),
        _int("bill_nanos"),
        _text("body"),
        _text("previous_digest"),
        _text("digest"),
        _int("closed_us"),
        sa.PrimaryKeyConstraint("month", name="pk_statements"),
        sqlite_strict=True,
    )
    op.create_table(
        "basis_lines",
        _text("asset_group"),
        _int("start_us"),
        _text("booked_month"),
        _text("basis"),
        _text("account"),
        _text("kind"),
        _text("tenant"),
        _text("month"),
        _int("amount_nanos"),
        _int("asset_us", nullable=True),
        sa.PrimaryKeyConstraint(
            "asset_group", "start_us", "booked_month", "basis", "account", "kind", "tenant", name="pk_basis_lines"
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_basis_lines_booked_month", "basis_lines", ["booked_month", "basis"])
    op.create_table(
        "session_costs",
        _text("asset_group"),
        _int("start_us"),
        _text("booked_month"),
        _text("basis"),
        _int("dims"),
        _text("kind"),
        _text("month"),
        _int("amount_nanos"),
        sa.PrimaryKeyConstraint(
            "asset_group", "start_us", "booked_month", "basis", "dims", "kind", name="pk_session_costs"
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_session_costs_booked_month", "session_costs", ["booked_month", "basis"])
    op.create_index("ix_session_costs_start_us", "session_costs", ["start_us"])
    op.create_table(
        "memo_lines",
        _text("asset_group"),
        _int("start_us"),
        _int("use_start_us"),
        _text("booked_month"),
        _text("basis"),
        _text("tenant"),
        _text("memo"),
        _text("month"),
        _int("quantity"),
        _int("amount_nanos", nullable=True),
        sa.PrimaryKeyConstraint(
            "asset_group", "start_us", "use_start_us", "booked_month", "basis", "tenant", "memo", name="pk_memo_lines"
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_memo_lines_booked_month", "memo_lines", ["booked_month", "basis"])
    op.create_index("ix_memo_lines_use_start_us", "memo_lines", ["asset_group", "use_start_us"])
    op.create_table(
        "segments",
        _text("asset_group"),
        _int("start_us"),
        _int("interval_us"),
        _int("end_us"),
        _int("blocks"),
        _int("bill_nanos"),
        _int("observed_us"),
        _int("kv_nanos"),
        _int("compute_nanos"),
        _int("step_us"),
        _text("weighted_block_us"),
        sa.PrimaryKeyConstraint("asset_group", "start_us", name="pk_segments"),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_segments_interval_us", "segments", ["asset_group", "interval_us"])
    op.create_table(
        "usage_hours",
        _text("engine"),
        _text("pool"),
        _int("start_us"),
        _int("dims"),
        _int("active_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        _int("cached_block_us"),
        _int("cached_charged_block_us"),
        _int("cached_blocks_end"),
        _int("compute_us"),
        _int("weighted_milliunits"),
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
        sa.PrimaryKeyConstraint("engine", "pool", "start_us", "dims", name="pk_usage_hours"),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_usage_hours_start_us", "usage_hours", ["start_us"])
    op.create_table(
        "pool_hours",
        _text("engine"),
        _text("pool"),
        _int("start_us"),
        _int("end_us"),
        _int("paying"),
        _int("observed_us"),
        _int("active_block_us"),
        _int("cached_block_us"),
        _int("free_block_us"),
        _int("unfilled_slot_us"),
        _int("lookahead_slot_us"),
        _int("held_slot_us"),
        _int("steps"),
        _int("step_us"),
        sa.PrimaryKeyConstraint("engine", "pool", "start_us", name="pk_pool_hours"),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index("ix_pool_hours_start_us", "pool_hours", ["start_us"])
    op.create_table(
        "settled_months",
        _text("month"),
        _text("inputs"),
        sa.PrimaryKeyConstraint("month", name="pk_settled_months"),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "findings",
        sa.Column("id", INT, nullable=False),
        _text("code"),
        _text("severity"),
        _text("subject"),
        _int("start_us"),
        _int("end_us"),
        _text("detail"),
        _int("noticed_us"),
        _text("digest"),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
        sa.UniqueConstraint("code", "subject", "start_us", "detail", name="uq_findings_code_subject_start_us_detail"),
        sqlite_strict=True,
    )

    dialect = op.get_context().dialect.name
    for table in APPEND_ONLY:
        for statement in guards.create_guard(dialect, table, delete=True):
            op.execute(statement)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
