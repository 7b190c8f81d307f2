"""The tables of what was scraped: rounds of a collector, and what each engine said in them.

Invariants as in :mod:`ledger.store.tables`: no updates, deleted by retention alone. A round has the records of one
15-second period and answers for them by a digest over all of them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, Table, Text, UniqueConstraint

from ledger.store.tables import Int, day_rows, integer, metadata, plain, text

GAUGE_COLUMNS: Final = (
    "started_us",
    "running_us",
    "waiting_us",
    "kv_active_ppm",
    "kv_cached_ppm",
    "capacity_tokens",
    "block_size",
)
COUNT_COLUMNS: Final = (
    "prompt_tokens",
    "computed_tokens",
    "cached_tokens",
    "transferred_tokens",
    "output_tokens",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
)
"""Figures of a :class:`~ledger.core.scraped.ScrapedPeriod` that may be absent, in order."""

collectors = plain(
    "collectors",
    Column("id", Int, primary_key=True),
    text("collector"),
    text("host"),
    UniqueConstraint("collector"),
)
"""Lives of processes that scraped. Where two claim the same time of an engine, the lower id counts."""

scrape_rounds = Table(
    "scrape_rounds",
    metadata,
    Column("boot", Int, ForeignKey("collectors.id"), primary_key=True, autoincrement=False),
    Column("seq", Int, primary_key=True, autoincrement=False),
    integer("day"),
    integer("start_us"),
    integer("targets"),
    integer("written_us"),
    text("digest"),
    Index("ix_scrape_rounds_start_us", "start_us"),
    Index("ix_scrape_rounds_day", "day"),
    sqlite_strict=True,
)
"""A period of a collector, with how many targets it had; ``seq`` is the number of the period since 1970."""

scraped_periods = day_rows(
    "scraped_periods",
    integer("target"),
    integer("start_us"),
    integer("end_us"),
    integer("busy_us"),
    text("kind"),
    text("model"),
    integer("scrapes"),
    integer("failures"),
    integer("gap_us"),
    *(Column(name, Int) for name in (*GAUGE_COLUMNS, *COUNT_COLUMNS)),
    Column("finished", Text),
    text("latencies"),
    text("signs"),
)
"""What one target said. ``finished``, ``latencies`` and ``signs`` are JSON lists; ``target`` is a row of the
configuration, which names the engine."""

scraped_hours = Table(
    "scraped_hours",
    metadata,
    Column("target", Int, primary_key=True, autoincrement=False),
    Column("start_us", Int, primary_key=True, autoincrement=False),
    integer("records"),
    Index("ix_scraped_hours_start_us", "start_us"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""How many records of a target begin in each quarter of an hour: derived, so that settling need not count them."""

scrape_failures = Table(
    "scrape_failures",
    metadata,
    Column("target", Int, primary_key=True, autoincrement=False),
    integer("since_us"),
    text("why"),
    text("detail"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""Targets that could not be read when they were asked last, since when and why. The leader's view, replaced whole."""

SCRAPED: Final = (scraped_periods,)
"""The tables that are partitioned by day."""

APPEND_ONLY: Final = (collectors, scrape_rounds, *SCRAPED)
"""Tables that refuse every UPDATE."""
