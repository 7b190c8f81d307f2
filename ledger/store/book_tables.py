"""The tables of the books: what was set, what was booked, and what is derived from both.

Three kinds, kept apart:

* *configuration* (settings, tenants, assets, prices, assignments, scrape targets): append-only, a correction is a
  new row that supersedes, every row carries a digest of itself;
* *the journal* (transactions, postings) and *statements*: append-only for ever, by triggers on both
  databases, with digests; postings of a transaction sum to zero;
* *derived* (basis_lines, session_costs, memo_lines, segments, usage_hours, pool_hours): can be made again
  from facts and configuration, and equal what is kept. Money rows of a closed month stay as they were: what
  arrives later adds difference rows whose ``booked_month`` is the month that was open, so that the sum over
  all rows is what is now known and the rows of one booked month are what its statement says.

An interval is named by ``asset_group`` (``engine:NAME`` or ``asset:ID``) and its start. Months are texts
``YYYY-MM`` in the ledger's billing zone. Times are microseconds since 1970-01-01 UTC, money is nano-units.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Index, Table, Text, UniqueConstraint

from ledger.store.tables import (
    HOLDING_COLUMNS,
    PREEMPTION_COLUMNS,
    TOKEN_COLUMNS,
    Int,
    integer,
    metadata,
    text,
)


def _key(*names: str) -> list[Column[int] | Column[str]]:
    texts = {"asset_group", "booked_month", "basis", "kind", "account", "tenant", "memo", "engine", "pool"}
    return [
        Column(name, Text, primary_key=True)
        if name in texts
        else Column(name, Int, primary_key=True, autoincrement=False)
        for name in names
    ]


def _config(name: str, *columns: Column[int] | Column[str]) -> Table:
    """Configuration rows, numbered in the order of their writing: the newest that speaks of a thing counts."""
    return Table(
        name,
        metadata,
        Column("id", Int, primary_key=True),
        *columns,
        integer("created_us"),
        text("digest"),
        sqlite_strict=True,
    )


def _derived(name: str, *columns: Column[int] | Column[str] | Index) -> Table:
    return Table(name, metadata, *columns, sqlite_strict=True, sqlite_with_rowid=False)


# --- configuration --------------------------------------------------------------------------------------

settings = _config("settings", text("name"), text("month"), text("value"))
"""``name`` is ``currency``, ``billing_zone`` or ``terms``; ``month`` is the first one that terms hold for."""

tenants = _config(
    "tenants",
    text("tenant"),
    text("display"),
    text("cost_center"),
    text("labels"),
    text("profile"),
    text("zone"),
    text("contacts"),
)
"""Who is charged: ``labels`` and ``contacts`` are canonical JSON."""

assets = _config(
    "assets",
    text("asset_id"),
    text("kind"),
    text("model"),
    text("uuid"),
    Column("memory_bytes", Int),
    text("cluster"),
    text("capacity_type"),
    integer("valid_from_us"),
    Column("valid_to_us", Int),
)
"""Registered assets. Discovered ones are not written down: they follow from the facts."""

prices = _config(
    "prices",
    text("asset_id"),
    text("model"),
    text("cluster"),
    text("capacity_type"),
    text("currency"),
    integer("nanos_per_hour"),
    integer("valid_from_us"),
    Column("valid_to_us", Int),
    Column("supersedes", Int),
)
"""A price of an asset, or a rule (``asset_id`` empty; an empty field matches anything)."""

assignments = _config(
    "assignments",
    text("asset_id"),
    text("engine"),
    integer("share_ppm"),
    integer("valid_from_us"),
    Column("valid_to_us", Int),
    Column("supersedes", Int),
)

scrape_targets = _config("scrape_targets", text("engine"), text("url"), text("kind"), integer("active"))
"""Where an engine is looked at from outside; the newest row of an engine counts, ``active`` 0 ends it."""

# --- the journal ----------------------------------------------------------------------------------------

transactions = Table(
    "transactions",
    metadata,
    Column("transaction_id", Text, primary_key=True),
    text("asset_group"),
    integer("start_us"),
    integer("end_us"),
    integer("revision"),
    text("month"),
    text("booked_month"),
    text("currency"),
    integer("bill_nanos"),
    integer("batches"),
    text("frame_digest"),
    text("inputs_digest"),
    Column("reverses", Text),
    integer("booked_us"),
    integer("created_us"),
    text("digest"),
    UniqueConstraint("asset_group", "start_us", "revision"),
    Index("ix_transactions_month", "month"),
    Index("ix_transactions_booked_month", "booked_month"),
    sqlite_strict=True,
)
"""One settlement of an interval. ``batches`` counts the facts that went in, ``frame_digest`` is of everything
else that did (prices, assets, shares, terms, boots), ``inputs_digest`` of both; ``digest`` covers the row and
its postings."""

postings = _derived(
    "postings",
    Column("transaction_id", Text, primary_key=True),
    Column("line", Int, primary_key=True, autoincrement=False),
    text("side"),
    text("account"),
    text("kind"),
    text("tenant"),
    integer("amount_nanos"),
    Column("asset_us", Int),
    integer("reversal"),
)
"""Debits are positive, credits of assets negative; ``reversal`` marks those that undo the revision before."""

statements = Table(
    "statements",
    metadata,
    Column("month", Text, primary_key=True),
    text("timezone"),
    text("currency"),
    text("basis"),
    integer("bill_nanos"),
    text("body"),
    text("previous_digest"),
    text("digest"),
    integer("closed_us"),
    sqlite_strict=True,
)
"""Closed months. ``body`` is the statement as canonical JSON; digests are chained from month to month."""

# --- derived --------------------------------------------------------------------------------------------

basis_lines = _derived(
    "basis_lines",
    *_key("asset_group", "start_us", "booked_month", "basis", "account", "kind", "tenant"),
    text("month"),
    integer("amount_nanos"),
    Column("asset_us", Int),
    Index("ix_basis_lines_booked_month", "booked_month", "basis"),
)
"""The lines of every settled interval under both bases."""

session_costs = _derived(
    "session_costs",
    *_key("asset_group", "start_us", "booked_month", "basis", "dims", "kind"),
    text("month"),
    integer("amount_nanos"),
    Index("ix_session_costs_booked_month", "booked_month", "basis"),
    Index("ix_session_costs_start_us", "start_us"),
)
"""Each session's part of its tenant's line; they sum to it."""

memo_lines = _derived(
    "memo_lines",
    *_key("asset_group", "start_us", "use_start_us", "booked_month", "basis", "tenant", "memo"),
    text("month"),
    integer("quantity"),
    Column("amount_nanos", Int),
    Index("ix_memo_lines_booked_month", "booked_month", "basis"),
    Index("ix_memo_lines_use_start_us", "asset_group", "use_start_us"),
)
"""Waste by kind: may overlap, never summed. ``use_start_us`` is the interval in which it arose; an
amount is absent where there is a quantity and no money to it."""

segments = _derived(
    "segments",
    *_key("asset_group", "start_us"),
    integer("interval_us"),
    integer("end_us"),
    integer("blocks"),
    integer("bill_nanos"),
    integer("observed_us"),
    integer("kv_nanos"),
    integer("compute_nanos"),
    integer("step_us"),
    text("weighted_block_us"),
    Index("ix_segments_interval_us", "asset_group", "interval_us"),
)
"""What a block-second cost. ``weighted_block_us`` is decimal text: times thousandths it passes 63 bits."""

usage_hours = _derived(
    "usage_hours",
    *_key("engine", "pool", "start_us", "dims"),
    *[integer(name) for name in HOLDING_COLUMNS],
    integer("cached_block_us"),
    integer("cached_charged_block_us"),
    integer("cached_blocks_end"),
    integer("compute_us"),
    integer("weighted_milliunits"),
    *[integer(f"{name}_tokens") for name in TOKEN_COLUMNS],
    *[integer(f"preempted_{name}") for name in PREEMPTION_COLUMNS],
    Index("ix_usage_hours_start_us", "start_us"),
)
"""A session's usage of a pool over a settled interval, quiet spans included."""

pool_hours = _derived(
    "pool_hours",
    *_key("engine", "pool", "start_us"),
    integer("end_us"),
    integer("paying"),
    integer("observed_us"),
    integer("active_block_us"),
    integer("cached_block_us"),
    integer("free_block_us"),
    integer("unfilled_slot_us"),
    integer("lookahead_slot_us"),
    integer("held_slot_us"),
    integer("steps"),
    integer("step_us"),
    Index("ix_pool_hours_start_us", "start_us"),
)

settled_months = _derived("settled_months", Column("month", Text, primary_key=True), text("inputs"))
"""A digest of all that a month's settlement could depend on, when it was last gone through: a month that has the
same is not gone through again. May be emptied at any time."""

findings = Table(
    "findings",
    metadata,
    Column("id", Int, primary_key=True),
    text("code"),
    text("severity"),
    text("subject"),
    integer("start_us"),
    integer("end_us"),
    text("detail"),
    integer("noticed_us"),
    text("digest"),
    UniqueConstraint("code", "subject", "start_us", "detail"),
    sqlite_strict=True,
)
"""What somebody should look at; each is written once."""

CONFIGURATION: Final = (settings, tenants, assets, prices, assignments, scrape_targets)
JOURNAL: Final = (transactions, postings, statements)
MONEY_ROWS: Final = (basis_lines, session_costs, memo_lines)
"""Derived rows that are kept by booked month."""

GUARDED: Final = (*CONFIGURATION, *JOURNAL, findings)
"""Tables that refuse every UPDATE and DELETE."""
