"""The tables of samples: what agents saw of GPUs and processes, as they reported it.

Invariants as in :mod:`ledger.store.tables`: no updates, deleted by retention alone, and the rows of a batch let its
canonical encoding, and so its digest, be made again. Agents have boots and batches of their own, since an agent is no
engine: nothing that looks for engines finds one here.

A spread is three columns (``_least``, ``_mean``, ``_most``), null where there was no reading.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, LargeBinary, Table, Text, UniqueConstraint
from sqlalchemy import text as sql_text

from ledger.store.tables import Int, day_rows, integer, metadata, plain, text

SPREAD_COLUMNS: Final = (
    "used_bytes",
    "free_bytes",
    "total_bytes",
    "reserved_bytes",
    "busy_ppm",
    "memory_busy_ppm",
    "occupancy_ppm",
    "power_mw",
)
"""Spreads of a :class:`~ledger.core.samples.GpuPeriod`, in order."""

HEALTH_COLUMNS: Final = (
    "inner_pid",
    "started_us",
    "threads",
    "rss_bytes",
    "cpu_us",
    "busiest_us",
    "waiting_threads",
    "workers",
    "workers_busy",
    "queued",
)
"""Figures of a :class:`~ledger.core.samples.ProcessPeriod` that may be unknown, in order."""


def _unknown(name: str) -> Column[int]:
    """A 64-bit column that is null where nothing was said."""
    return Column(name, Int)


def _spread(name: str) -> list[Column[int]]:
    return [_unknown(f"{name}_{part}") for part in ("least", "mean", "most")]


def _marks() -> list[Column[int]]:
    return [_unknown(f"used_mark_{number}") for number in (1, 2, 3)]


agents = plain(
    "agents",
    Column("id", Int, primary_key=True),
    text("source_id"),
    text("origin"),
    text("cluster"),
    text("namespace"),
    text("pod"),
    text("host"),
    text("software"),
    text("driver"),
    UniqueConstraint(
        *("source_id", "origin", "cluster", "namespace", "pod", "host", "software", "driver"), name="uq_agents_all"
    ),
)
"""Each :class:`~ledger.core.samples.Agent` once."""

agent_boots = plain(
    "agent_boots",
    Column("id", Int, primary_key=True),
    text("source_id"),
    text("boot_id"),
    integer("anchor_us"),
    integer("started_us"),
    integer("received_us"),
    UniqueConstraint("source_id", "boot_id"),
)
"""Lives of agents."""

gpus = plain("gpus", Column("id", Int, primary_key=True), Column("uuid", Text, nullable=False, unique=True))
"""Each GPU or instance that was ever seen, once, so that its rows need not repeat 40 characters."""

agent_batches = Table(
    "agent_batches",
    metadata,
    Column("boot", Int, ForeignKey("agent_boots.id"), primary_key=True, autoincrement=False),
    Column("seq", Int, primary_key=True, autoincrement=False),
    integer("day"),
    Column("source", Int, ForeignKey("agents.id"), nullable=False),
    integer("start_us"),
    integer("end_us"),
    integer("skew_us"),
    integer("has_gpus"),
    integer("received_us"),
    integer("ahead"),
    integer("missing_before"),
    Column("digest", LargeBinary, nullable=False),
    Column("prev", LargeBinary, nullable=False),
    Column("kept_digest", LargeBinary, nullable=False),
    Index("ix_agent_batches_boot_start_us", "boot", "start_us"),
    Index("ix_agent_batches_day", "day"),
    Index(
        "ix_agent_batches_lists",
        *("day", "boot", "seq"),
        sqlite_where=sql_text("has_gpus = 1"),
        postgresql_where=sql_text("has_gpus = 1"),
    ),
    sqlite_strict=True,
)
"""The key of a batch of samples, with the same columns as that of an engine's batch."""

gpu_lists = day_rows(
    "gpu_lists",
    integer("gpu"),
    integer("index_no"),
    text("model"),
    text("parent"),
    _unknown("instance"),
    _unknown("memory_bytes"),
)
"""What an agent could see, where it said so (``has_gpus``)."""

gpu_periods = day_rows(
    "gpu_periods",
    integer("gpu"),
    integer("readings"),
    *(column for name in SPREAD_COLUMNS for column in _spread(name)),
    *_marks(),
    _unknown("ecc_corrected"),
    _unknown("ecc_uncorrected"),
    Column("throttles", Text),
)
"""``throttles`` is a JSON list of pairs, null where the device does not say."""

gpu_processes = day_rows(
    "gpu_processes",
    integer("gpu"),
    integer("pid"),
    text("engagement"),
    integer("readings"),
    *_spread("used_bytes"),
    *_marks(),
)
gpu_rests = day_rows("gpu_rests", integer("gpu"), *_spread("rest_bytes"), integer("unmeasured"))

process_periods = day_rows(
    "process_periods",
    integer("pid"),
    text("name"),
    text("watch"),
    text("busiest"),
    *(_unknown(name) for name in HEALTH_COLUMNS),
)
agent_troubles = day_rows("agent_troubles", text("reason"), text("gpu"), integer("count"))

SAMPLES: Final = (gpu_lists, gpu_periods, gpu_processes, gpu_rests, process_periods, agent_troubles)
"""The tables that are partitioned by day, in the order in which everybody writes and locks them."""

APPEND_ONLY: Final = (agents, agent_boots, gpus, agent_batches, *SAMPLES)
"""Tables that refuse every UPDATE."""
