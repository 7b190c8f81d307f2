"""The fact tables: what engines reported, as it was reported.

Invariants: facts have no updates (triggers of :mod:`ledger.store.guards`), they are deleted by retention
alone, and the rows of a batch let its canonical encoding, and so its digest, be made again.

Every row of a batch is keyed ``(boot, seq, pos)``: ``boot`` is the id in :data:`boots`, ``pos`` the row's
place in the batch. ``day`` (days since 1970-01-01 UTC of the batch's start) leads the keys of the large
tables: it is what PostgreSQL partitions by. They carry no foreign keys, since each would cost a look-up
a row and keep partitions from being dropped; retention removes a day from all of them in one transaction.
Flags are integers 0 and 1. Times are microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.sqlite import INTEGER

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables; :mod:`ledger.store.book_tables` and :mod:`ledger.store.sample_tables` add those of books and samples."""

# STRICT tables of SQLite know no BIGINT; their INTEGER has 64 bits.
Int: Final = BigInteger().with_variant(INTEGER(), "sqlite")


def integer(name: str) -> Column[int]:
    """A 64-bit column that is never null."""
    return Column(name, Int, nullable=False)


def text(name: str) -> Column[str]:
    """A text column that is never null."""
    return Column(name, Text, nullable=False)


def plain(name: str, *parts: Column[int] | Column[str] | Column[bytes] | UniqueConstraint | Index) -> Table:
    """A table that is neither partitioned nor clustered by its key."""
    return Table(name, metadata, *parts, sqlite_strict=True)


def _key() -> list[Column[int]]:
    return [Column(name, Int, primary_key=True, autoincrement=False) for name in ("boot", "seq", "pos")]


def day_rows(name: str, *columns: Column[int] | Column[str], sub: bool = False) -> Table:
    """A large table of facts, partitioned by day; ``sub`` adds a second place, for rows below a row."""
    keys = ("day", "boot", "seq", "pos", "sub") if sub else ("day", "boot", "seq", "pos")
    return Table(
        name,
        metadata,
        *[Column(key, Int, primary_key=True, autoincrement=False) for key in keys],
        *columns,
        postgresql_partition_by="LIST (day)",
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )


# --- who reports, and of whom ---------------------------------------------------------------------------

ledger_origin = Table(
    "ledger_origin",
    metadata,
    Column("one", Int, primary_key=True, autoincrement=False),
    text("origin"),
    integer("fixed_us"),
    CheckConstraint("one = 1", name="single_row"),
    sqlite_strict=True,
)
"""One row, from the first batch on: whether this ledger is simulated or live."""

sources = plain(
    "sources",
    Column("id", Int, primary_key=True),
    text("engine"),
    text("origin"),
    text("cluster"),
    text("namespace"),
    text("pod"),
    text("host"),
    text("software"),
    UniqueConstraint("engine", "origin", "cluster", "namespace", "pod", "host", "software"),
)

boots = plain(
    "boots",
    Column("id", Int, primary_key=True),
    text("engine"),
    text("boot_id"),
    integer("anchor_us"),
    integer("started_us"),
    integer("received_us"),
    UniqueConstraint("engine", "boot_id"),
)
"""Lives of engines. Ids rise in the order of first acceptance, which decides who loses an overlap."""

dimensions = plain(
    "dimensions",
    Column("id", Int, primary_key=True),
    text("tenant"),
    text("session"),
    text("model"),
    text("adapter"),
    text("scenario"),
    integer("priority"),
    UniqueConstraint("tenant", "session", "model", "adapter", "scenario", "priority"),
)
"""Each :class:`~ledger.core.records.Dimensions` once."""

# --- batches, and what lives as long as their boot ------------------------------------------------------

batches = Table(
    "batches",
    metadata,
    Column("boot", Int, ForeignKey("boots.id"), primary_key=True, autoincrement=False),
    Column("seq", Int, primary_key=True, autoincrement=False),
    integer("day"),
    Column("source", Int, ForeignKey("sources.id"), nullable=False),
    integer("start_us"),
    integer("end_us"),
    integer("skew_us"),
    integer("has_standing"),
    integer("received_us"),
    integer("ahead"),
    integer("missing_before"),
    Column("digest", LargeBinary, nullable=False),
    Column("prev", LargeBinary, nullable=False),
    Column("kept_digest", LargeBinary, nullable=False),
    Column("hook", Text, nullable=False, server_default=""),
    Index("ix_batches_boot_start_us", "boot", "start_us"),
    Index("ix_batches_day", "day"),
    sqlite_strict=True,
)
"""The key, written in one transaction with the rows. ``digest`` is the sender's, ``prev`` that of the batch
before (empty for seq 1), ``kept_digest`` that of what the rows below hold: it differs from ``digest`` only
where a newer sender had fields that are unknown here. ``ahead``: it lay after its receipt, within bounds.
``missing_before``: numbers not yet seen between the batch before and this one, when it arrived. ``hook`` is what the
hook said of itself, as JSON; empty: nothing."""

lost_periods = Table(
    "lost_periods",
    metadata,
    Column("boot", Int, primary_key=True, autoincrement=False),
    Column("seq", Int, primary_key=True, autoincrement=False),
    integer("winner_boot"),
    integer("winner_seq"),
    integer("noticed_us"),
    sqlite_strict=True,
)
"""Batches that are not valid: a boot of the same engine that was first accepted earlier claims their time."""

pool_opens = plain(
    "pool_opens",
    *_key(),
    text("pool"),
    integer("at_us"),
    integer("blocks"),
    text("model"),
    integer("paying"),
)
pool_groups = plain(
    "pool_groups",
    *_key(),
    Column("sub", Int, primary_key=True, autoincrement=False),
    integer("block_size"),
    text("kind"),
)
pool_shards = plain(
    "pool_shards",
    *_key(),
    Column("sub", Int, primary_key=True, autoincrement=False),
    integer("dp"),
    integer("pp"),
    integer("tp"),
    text("gpu_uuid"),
    text("gpu_model"),
    Column("share_ppm", Int),
    Column("pid", Int),
    Column("kv_bytes", Int),
    Column("weights_bytes", Int),
)
pool_closes = plain("pool_closes", *_key(), text("pool"), integer("at_us"), text("reason"))

# --- the rows of a period --------------------------------------------------------------------------------

TOKEN_COLUMNS: Final = (
    "computed",
    "cached_own",
    "cached_others",
    "transferred",
    "unprocessed",
    "recomputed",
    "output",
    "drafted",
    "rejected",
)
"""Fields of :class:`~ledger.core.records.Tokens`, in order; as columns they end in ``_tokens``."""

PREEMPTION_COLUMNS: Final = ("kv_full", "priority", "reset", "other")
"""Fields of :class:`~ledger.core.records.Preemptions`, in order; as columns they begin with ``preempted_``."""

HOLDING_COLUMNS: Final = ("active_block_us", "unfilled_slot_us", "lookahead_slot_us", "held_slot_us")
"""Fields of :class:`~ledger.core.records.Holding`, in order."""


def _tokens() -> list[Column[int]]:
    return [integer(f"{name}_tokens") for name in TOKEN_COLUMNS]


def _preemptions() -> list[Column[int]]:
    return [integer(f"preempted_{name}") for name in PREEMPTION_COLUMNS]


def _holding() -> list[Column[int]]:
    return [integer(name) for name in HOLDING_COLUMNS]


pool_periods = day_rows(
    "pool_periods",
    text("pool"),
    integer("blocks"),
    integer("active_block_us"),
    integer("cached_block_us"),
    integer("free_block_us"),
    integer("unfilled_slot_us"),
    integer("lookahead_slot_us"),
    integer("held_slot_us"),
    integer("active_blocks_end"),
    integer("cached_blocks_end"),
    integer("steps"),
    integer("step_us"),
)
group_periods = day_rows("group_periods", integer("group_no"), integer("active_block_us"), sub=True)

session_periods = day_rows(
    "session_periods",
    text("pool"),
    integer("dims"),
    *_holding(),
    integer("cached_block_us"),
    integer("cached_blocks_end"),
    integer("compute_us"),
    *_tokens(),
    *_preemptions(),
)
standing_counts = day_rows("standing_counts", text("pool"), integer("dims"), integer("cached_blocks"))

admissions = day_rows(
    "admissions",
    text("request"),
    Column("parent", Text),
    integer("dims"),
    integer("prompt_tokens"),
    integer("arrived_us"),
)
request_records = day_rows(
    "request_records",
    text("request"),
    Column("parent", Text),
    integer("dims"),
    text("pool"),
    text("outcome"),
    text("finish_reason"),
    integer("prompt_tokens"),
    *_tokens(),
    *_preemptions(),
    *_holding(),
    integer("compute_us"),
    integer("peak_blocks"),
    integer("arrived_us"),
    Column("scheduled_us", Int),
    Column("first_token_us", Int),
    Column("last_token_us", Int),
    integer("ended_us"),
)
request_uses = day_rows(
    "request_uses", integer("start_us"), integer("active_block_us"), integer("compute_us"), sub=True
)
request_holdings = day_rows("request_holdings", text("pool"), *_holding(), sub=True)

histograms = day_rows("histograms", text("name"), text("labels"), text("buckets"), integer("count"), integer("total"))
"""``labels`` and ``buckets`` are JSON lists of pairs: they are merged by the reader, never by SQL."""

# --- what was not taken ----------------------------------------------------------------------------------

quarantine = plain(
    "quarantine",
    Column("id", Int, primary_key=True),
    integer("received_us"),
    text("engine"),
    text("boot_id"),
    Column("seq", Int),
    text("reason"),
    text("detail"),
    integer("bytes"),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("raw", LargeBinary, nullable=False),
)
"""Refused batches as they came, to be read and tried again; ``digest`` is of the raw bytes."""

ingest_counts = Table(
    "ingest_counts",
    metadata,
    Column("day", Int, primary_key=True, autoincrement=False),
    Column("reason", Text, primary_key=True),
    integer("count"),
    sqlite_strict=True,
)
"""Answers other than plain acceptance, by day of receipt and reason; the only row here that is updated."""

PARTITIONED: Final = (
    pool_periods,
    group_periods,
    session_periods,
    standing_counts,
    admissions,
    request_records,
    request_uses,
    request_holdings,
    histograms,
)
"""The large tables, in the order in which everybody writes and locks them."""

OF_BOOTS: Final = (pool_opens, pool_groups, pool_shards, pool_closes)
"""Small tables whose rows stay until the last batch of their boot is deleted."""

APPEND_ONLY: Final = (
    ledger_origin,
    sources,
    boots,
    dimensions,
    batches,
    lost_periods,
    *OF_BOOTS,
    *PARTITIONED,
)
"""Tables that refuse every UPDATE."""
