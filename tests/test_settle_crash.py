"""Killed at every step of settling and closing, on both stores: nothing twice, nothing half, the audit silent."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from booking import HOUR, LATE, MINUTE, A, B, book, change_price, deliver, give_asset, open_ledger, request, stretch
from databases import _admin, _named
from faults import run_killed_at
from sqlalchemy import make_url, text

from ledger.audit import audit
from ledger.core.records import PERIOD_US, Admission, Outcome
from ledger.reports.monthly import read_statement
from ledger.settle import close_month
from ledger.store import book_tables, books, rollups
from ledger.store.database import Database, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOVEMBER = "2026-11"


def begun(db: Database) -> None:
    """An hour and a bit, settled once; then a price changed, so that settling has revisions and first bookings."""
    open_ledger(db)
    give_asset(db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0, to_us=T0 + 2 * HOUR, share_ppm=500_000)
    life = Life(start_us=T0 + 59 * MINUTE)
    batches = list(stretch(life, T0 + 61 * MINUTE, {A: (500, 0), B: (0, 100)}, opens=True, closes=True))
    start_us = T0 + HOUR - PERIOD_US
    gone = request(
        "r", A, {start_us: (5, 0), T0 + HOUR: (7, 0)}, outcome=Outcome.ABORTED, ended_us=T0 + HOUR + PERIOD_US
    )
    asked = Admission(request="r", dims=A, prompt_tokens=10, arrived_us=life.start_us)
    batches[0] = replace(batches[0], admissions=(asked,))
    batches[4] = replace(batches[4], requests=(gone,))
    deliver(db, life, batches)
    book(db, until_us=T0 + 2 * HOUR)
    change_price(db, "gpu-0", 3_700_000_000, T0)


def work(db: Database, acknowledge: Callable[[str], None]) -> None:
    """Settle, close the month, and book what comes late."""
    book(db, until_us=T0 + 2 * HOUR)
    acknowledge("settled")
    close_month(db, NOVEMBER, now_us=LATE)
    acknowledge("closed")
    change_price(db, "gpu-0", 3_900_000_000, T0 + HOUR)
    book(db, until_us=T0 + 2 * HOUR)
    acknowledge("adjusted")


def _stepped(write):
    """COPY is not a statement that SQLAlchemy tells of: make one around it."""

    def stepped(connection, table, rows) -> None:
        connection.execute(text("SELECT 1"))
        write(connection, table, rows)
        connection.execute(text("SELECT 1"))

    return stepped


def state(db: Database) -> dict[str, list[tuple]]:
    """All that settling wrote, without the numbers that say when or in which order."""
    with db.read() as snapshot:
        return {
            each.name: sorted((tuple(row) for row in snapshot.execute(each.select())), key=str)
            for each in (
                *book_tables.MONEY_ROWS,
                book_tables.transactions,
                book_tables.postings,
                book_tables.statements,
            )
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def restored(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], str]]:
    """Each call gives the URL of a database as :func:`begun` leaves it."""
    for room in (books, rollups):
        monkeypatch.setattr(room, "write_rows", _stepped(room.write_rows))
    if request.param == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        made = connect(url, durable=False)
        begun(made)
        made.close()
        path = Path(url.removeprefix("sqlite:///"))

        def copy() -> str:
            again = tmp_path / "again.db"
            for rest in tmp_path.glob("again.db*"):
                rest.unlink()
            shutil.copyfile(path, again)
            return f"sqlite:///{again}"

        yield copy
        return
    server, url = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_url")
    made = connect(url, durable=False)
    begun(made)
    made.close()
    template = make_url(url).database

    def create() -> str:
        _admin(server, "DROP DATABASE IF EXISTS settle_again WITH (FORCE)")
        _admin(server, f"CREATE DATABASE settle_again TEMPLATE {template} STRATEGY file_copy")
        return _named(server, "settle_again")

    yield create
    _admin(server, "DROP DATABASE IF EXISTS settle_again WITH (FORCE)")


def crash_at_every(stride: int, restored: Callable[[], str]) -> int:
    url = restored()
    whole = connect(url, durable=False)
    work(whole, lambda _: None)
    expected = state(whole)
    assert audit(whole) == ()
    statements = [read_statement(whole, month, now_us=LATE) for month in (NOVEMBER, "2026-12")]
    assert statements[1].adjustments
    whole.close()
    point, killed = 1 - stride, True
    while killed:
        point += stride
        url = restored()
        killed, acknowledged = run_killed_at(point, url, work)
        db = connect(url, durable=False)
        assert audit(db) == (), f"killed at step {point} after {acknowledged}"
        work(db, lambda _: None)
        assert state(db) == expected, f"killed at step {point} after {acknowledged}"
        assert audit(db) == (), f"killed at step {point}, then run again"
        db.close()
    print(f"killed at {(point - 1) // stride} steps, before and after statements, copies and commits")
    return point


def test_a_crash_at_some_steps_of_settling_and_closing_leaves_what_no_crash_leaves(
    restored: Callable[[], str],
) -> None:
    assert crash_at_every(127, restored) > 300


@pytest.mark.slow
def test_a_crash_at_any_step_of_settling_and_closing_leaves_what_no_crash_leaves(
    restored: Callable[[], str], pytestconfig: pytest.Config
) -> None:
    crash_at_every(pytestconfig.getoption("--crash-stride"), restored)
