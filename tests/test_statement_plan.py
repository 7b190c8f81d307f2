"""A statement reads roll-ups: what the databases plan for it names no table of facts, or only a few rows of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from batches import T0, Life
from booking import HOUR, LATE, MINUTE, A, B, book, deliver, give_asset, open_ledger, stretch
from plans import plans

from ledger.reports.monthly import read_sessions, read_statement
from ledger.reports.statement import as_value, from_value
from ledger.settle import close_month
from ledger.store import tables
from ledger.store.book_tables import MONEY_ROWS

if TYPE_CHECKING:
    from ledger.store.database import Database

FACTS = [table.name for table in tables.PARTITIONED]
NOVEMBER = "2026-11"


def two_hours(db: Database, *, close: bool) -> None:
    open_ledger(db)
    give_asset(db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0)
    life = Life(start_us=T0 + 50 * MINUTE)
    deliver(db, life, stretch(life, T0 + 70 * MINUTE, {A: (500, 0), B: (3, 7)}, opens=True, closes=close))


def test_a_settled_month_is_read_without_a_look_at_any_fact(db: Database) -> None:
    two_hours(db, close=True)
    book(db, until_us=T0 + 2 * HOUR)
    close_month(db, NOVEMBER, now_us=LATE)
    for read in (
        lambda: read_statement(db, NOVEMBER, now_us=LATE),
        lambda: read_statement(db, NOVEMBER, now_us=LATE, tenant="A"),
        lambda: read_sessions(db, NOVEMBER, now_us=LATE, tenant="A"),
    ):
        seen = plans(db, read)
        assert seen
        assert not [plan for plan in seen for table in FACTS if table in plan]


def test_the_sums_of_an_open_month_go_by_the_index_of_the_month_and_facts_by_their_keys(sqlite_db: Database) -> None:
    two_hours(sqlite_db, close=False)
    book(sqlite_db, until_us=T0 + HOUR)
    seen = plans(sqlite_db, lambda: read_statement(sqlite_db, NOVEMBER, now_us=T0 + 71 * MINUTE))
    assert any("basis_lines" in plan for plan in seen)
    scanned = [f"SCAN {table}" for table in (*FACTS, *(each.name for each in MONEY_ROWS), "usage_hours", "pool_hours")]
    assert not [plan for plan in seen for scan in scanned if scan in plan]


def test_a_statement_survives_its_way_through_json(sqlite_db: Database) -> None:
    two_hours(sqlite_db, close=False)
    book(sqlite_db, until_us=T0 + HOUR)
    statement = read_statement(sqlite_db, NOVEMBER, now_us=T0 + 71 * MINUTE)
    value = json.loads(json.dumps(as_value(statement)))
    assert from_value(value, digest="") == statement
    assert list(value)[:7] == ["month", "timezone", "currency", "basis", "kv_share", "bill_nanos", "provisional_from"]
    assert value["provisional_from"] == "2026-11-03T01:00:00Z"
    assert sum(line["amount_nanos"] for line in value["lines"]) == value["bill_nanos"]
