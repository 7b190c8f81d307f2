"""The fleet as it is shown: by the boot that reports, and with what its hook says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from batches import ALICE, T0, Life

from ledger import ingest
from ledger.core.records import NO_REPORT, PERIOD_US, Batch, HookReport
from ledger.store import fleet
from ledger.store.fleet import State

if TYPE_CHECKING:
    from ledger.store.database import Database
    from ledger.store.fleet import EngineState

HELD = {ALICE: (3, 1)}


def deliver(db: Database, life: Life, batch: Batch) -> ingest.Outcome:
    outcome = ingest.accept(db, life.send(batch), batch.end_us)
    assert outcome.refusal is None, outcome.refusal
    return outcome


def booted(db: Database, boot_id: str, at_us: int, *, opens: bool = True) -> Life:
    """A boot that announced itself and, if it ``opens``, delivered a period with an open pool."""
    life = Life(boot_id=boot_id, start_us=at_us)
    deliver(db, life, life.announce())
    if opens:
        deliver(db, life, life.period(HELD, opens=True, standing=True))
    return life


def engine(db: Database, now_us: int) -> EngineState:
    with db.read() as connection:
        (found,) = fleet.engine_states(connection, now_us)
    return found


def test_of_two_boots_that_report_at_once_the_one_that_the_books_take_is_shown(sqlite_db: Database) -> None:
    first = booted(sqlite_db, "first", T0)
    for _ in range(2):
        deliver(sqlite_db, first, first.period(HELD))
    second = booted(sqlite_db, "second", T0 + PERIOD_US)
    assert deliver(sqlite_db, second, second.period(HELD)).lost
    shown = engine(sqlite_db, second.now_us)
    assert (shown.boot_id, shown.state, shown.last_seq) == ("first", State.OPEN, 4)


def test_a_boot_that_goes_on_after_a_newer_one_has_closed_is_shown(db: Database) -> None:
    first = booted(db, "first", T0)
    second = booted(db, "second", T0 + PERIOD_US)
    deliver(db, second, second.period(HELD, closes=True))
    deliver(db, first, first.period(HELD))
    deliver(db, first, first.period(HELD))
    shown = engine(db, first.now_us)
    assert (shown.boot_id, shown.state) == ("first", State.OPEN)
    with db.read() as connection:
        sessions = fleet.live_sessions(connection, [shown], first.now_us)
        batches = fleet.recent_batches(connection, [shown], most=1)
    assert [row.end_us for row in sessions] == [first.now_us]
    assert [row.seq for row in batches] == [4]


def test_a_boot_that_was_killed_makes_room_for_the_next_one_at_once(db: Database) -> None:
    booted(db, "killed", T0)
    booted(db, "next", T0 + PERIOD_US + 1, opens=False)
    shown = engine(db, T0 + PERIOD_US + 2)
    assert (shown.boot_id, shown.state) == ("next", State.STARTING)


def test_a_boot_that_fell_silent_beside_one_that_closed_is_not_forgotten(sqlite_db: Database) -> None:
    first = booted(sqlite_db, "first", T0)
    second = booted(sqlite_db, "second", T0 + PERIOD_US)
    deliver(sqlite_db, first, first.period(HELD))
    deliver(sqlite_db, second, second.period(HELD, closes=True))
    shown = engine(sqlite_db, second.now_us + fleet.SILENT_US)
    assert (shown.boot_id, shown.state) == ("first", State.SILENT)


def test_what_its_hook_said_last_stands_beside_an_engine(sqlite_db: Database) -> None:
    life = booted(sqlite_db, "boot", T0)
    assert engine(sqlite_db, life.now_us).hook == NO_REPORT
    report = HookReport(dropped=(("spool_bytes", 3),), faults=(("unknown_request", 2),))
    deliver(sqlite_db, life, replace(life.period(HELD), hook=report))
    shown = engine(sqlite_db, life.now_us)
    assert (shown.hook, shown.lately, shown.state) == (report, report, State.OPEN)
    assert (shown.dropped, shown.faults) == (3, 2)


def test_drops_and_faults_of_more_than_a_day_ago_are_not_of_now(db: Database) -> None:
    life = booted(db, "boot", T0)
    old = HookReport(dropped=(("queue_full", 1), ("spool_bytes", 3)), faults=(("unknown_request", 2),))
    deliver(db, life, replace(life.period(HELD), hook=old))
    life.now_us += fleet.CLOSED_US
    new = replace(old, dropped=(("queue_full", 1), ("refused", 4), ("spool_bytes", 5)))
    deliver(db, life, replace(life.period(HELD), hook=new))
    shown = engine(db, life.now_us + PERIOD_US)
    assert shown.hook == new
    assert shown.lately == HookReport(dropped=(("refused", 4), ("spool_bytes", 2)))


def test_an_engine_whose_hook_has_switched_itself_off_is_off_and_neither_silent_nor_closed(sqlite_db: Database) -> None:
    life = booted(sqlite_db, "boot", T0)
    off = HookReport(off="8 faults in a row")
    deliver(sqlite_db, life, replace(life.period(HELD, closes=True), hook=off))
    for later_us in (0, fleet.SILENT_US + 1):
        assert engine(sqlite_db, life.now_us + later_us).state is State.OFF
    booted(sqlite_db, "next", life.now_us)
    assert engine(sqlite_db, life.now_us + PERIOD_US).state is State.OPEN
