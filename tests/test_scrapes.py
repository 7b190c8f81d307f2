"""Targets and what they said, in the store, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from booking import open_ledger
from scraped import FULL, T0, S, record
from sqlalchemy import text

from ledger import audit
from ledger.core.records import PERIOD_US, Origin
from ledger.errors import StoreError, UsageError
from ledger.limits import SCRAPE_TARGETS_MAX
from ledger.store import receipt, retention, scrapes

if TYPE_CHECKING:
    from ledger.core.scraped import ScrapedPeriod
    from ledger.store.database import Database

DAY = 86_400 * S


def add(db: Database, engine: str, url: str = "http://engine:8000/metrics", kind: str = "auto") -> bool:
    return db.write(lambda c: scrapes.add_target(c, engine=engine, url=url, kind=kind, now_us=T0))


def targets(db: Database) -> dict[str, scrapes.Target]:
    with db.read() as connection:
        return {target.engine: target for target in scrapes.list_targets(connection)}


def collector(db: Database, name: str = "one") -> int:
    return db.write(lambda c: scrapes.start_collector(c, collector=name, host="h"))


def write(db: Database, by: int, start_us: int, *records: tuple[int, ScrapedPeriod]) -> None:
    scrapes.write_round(db, collector=by, start_us=start_us, targets=len(records), records=records, now_us=start_us)


def between(db: Database, start_us: int, end_us: int) -> dict[str, tuple[ScrapedPeriod, ...]]:
    with db.read() as connection:
        return scrapes.scraped_between(connection, start_us, end_us)


def test_a_record_comes_back_as_it_was_written(db: Database) -> None:
    add(db, "e")
    number = targets(db)["e"].number
    bare = record(T0 + 15 * S)
    by = collector(db)
    write(db, by, T0, (number, FULL))
    write(db, by, T0 + 15 * S, (number, bare))
    assert between(db, T0, T0 + 30 * S) == {"e": (FULL, bare)}
    assert between(db, T0 + 15 * S, T0 + 30 * S) == {"e": (bare,)}
    assert between(db, T0 + 30 * S, T0 + 60 * S) == {}


def test_why_targets_cannot_be_read_is_kept_in_place_of_what_was_kept(db: Database) -> None:
    def kept() -> dict[int, scrapes.Failing]:
        with db.read() as connection:
            return scrapes.failures(connection)

    down = scrapes.Failing(since_us=T0, why="unreachable", detail="Connection refused")
    ill = scrapes.Failing(since_us=T0 + S, why="status", detail="it answers 503")
    for failing in ({1: down, 2: ill}, {2: down}, {}):
        db.write(lambda c, failing=failing: scrapes.note_failures(c, failing))
        assert kept() == failing


def test_the_newest_row_of_an_engine_says_where_it_is_scraped_and_saying_it_twice_writes_one(db: Database) -> None:
    assert add(db, "e")
    assert not add(db, "e")
    assert add(db, "e", "http://other:8000/metrics")
    assert add(db, "d", kind="sglang")
    assert [(t.engine, t.url, t.kind) for t in targets(db).values()] == [
        ("d", "http://engine:8000/metrics", "sglang"), ("e", "http://other:8000/metrics", "auto"),
    ]  # fmt: skip
    assert db.write(lambda c: scrapes.remove_target(c, "e", now_us=T0))
    assert not db.write(lambda c: scrapes.remove_target(c, "e", now_us=T0))
    assert set(targets(db)) == {"d"}
    with db.read() as connection:
        assert scrapes.targeted(connection) == {"d", "e"}


def test_targets_are_configuration_and_refuse_changes(db: Database) -> None:
    add(db, "e")
    for statement in ("UPDATE scrape_targets SET url = 'x'", "DELETE FROM scrape_targets"):
        with pytest.raises(StoreError, match="append-only"):
            db.write(lambda c, statement=statement: c.exec_driver_sql(statement))


def test_a_simulated_ledger_scrapes_nobody(sqlite_db: Database) -> None:
    sqlite_db.write(lambda c: receipt.fix_origin(c, Origin.SIMULATED, T0))
    with pytest.raises(UsageError, match="simulated"):
        add(sqlite_db, "e")
    with pytest.raises(UsageError, match="simulated"):
        write(sqlite_db, collector(sqlite_db), T0)


def test_the_first_round_makes_a_ledger_a_live_one(sqlite_db: Database) -> None:
    write(sqlite_db, collector(sqlite_db), T0)
    with sqlite_db.read() as connection:
        assert receipt.origin_of(connection) is Origin.LIVE


def test_more_targets_than_the_bound_are_refused(sqlite_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes, "SCRAPE_TARGETS_MAX", 2)
    assert SCRAPE_TARGETS_MAX == 1000
    add(sqlite_db, "a")
    add(sqlite_db, "b")
    with pytest.raises(UsageError, match="2 targets are scraped, and 2 may be"):
        add(sqlite_db, "c")
    assert add(sqlite_db, "b", "http://moved/metrics")


def test_of_two_collectors_that_claim_the_same_time_the_first_counts(db: Database) -> None:
    add(db, "e")
    number = targets(db)["e"].number
    first, second = collector(db), collector(db, "two")
    early, late = record(T0, length_us=8 * S), record(T0 + 9 * S, length_us=6 * S)
    write(db, second, T0, (number, record(T0 + 5 * S, length_us=10 * S)), (number, record(T0 + 15 * S)))
    write(db, first, T0, (number, early), (number, late))
    assert between(db, T0, T0 + 15 * S)["e"] == (early, late, record(T0 + 15 * S))


def test_who_was_heard_before_an_hour_is_known_by_when(db: Database) -> None:
    add(db, "e")
    add(db, "f")
    known, by = targets(db), collector(db)
    write(db, by, T0 - 900 * S, (known["f"].number, record(T0 - 900 * S, engine="f")))
    write(db, by, T0 - 60 * S, (known["e"].number, record(T0 - 60 * S)))
    write(db, by, T0 - 30 * S, (known["e"].number, record(T0 - 30 * S, length_us=5 * S)))
    with db.read() as connection:
        assert scrapes.heard_before(connection, T0, 885 * S) == {"e": T0 - 25 * S}
        assert scrapes.heard_before(connection, T0, 900 * S) == {"e": T0 - 25 * S, "f": T0 - 885 * S}


def test_records_are_counted_by_interval(sqlite_db: Database) -> None:
    add(sqlite_db, "e")
    number, by = targets(sqlite_db)["e"].number, collector(sqlite_db)
    for at in (0, 15, 900):
        write(sqlite_db, by, T0 + at * S, (number, record(T0 + at * S)))
    with sqlite_db.read() as connection:
        assert scrapes.count_records(connection, T0, T0 + 3600 * S, 900 * S) == {("e", T0): 2, ("e", T0 + 900 * S): 1}
        assert scrapes.count_records(connection, T0, T0 + 3600 * S, 3600 * S) == {("e", T0): 3}
        assert scrapes.first_round_us(connection) == T0
        assert scrapes.last_round_us(connection) == T0 + 915 * S


def test_retention_takes_rounds_with_their_records(db: Database) -> None:
    add(db, "e")
    number, by = targets(db)["e"].number, collector(db)
    write(db, by, T0, (number, record(T0)))
    write(db, by, T0 + 3 * DAY, (number, record(T0 + 3 * DAY)))
    db.retention_days = 2
    assert retention.delete_old_facts(db, T0 + 5 * DAY) == 1
    assert set(between(db, T0, T0 + 4 * DAY)) == {"e"}
    assert len(between(db, T0, T0 + 4 * DAY)["e"]) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE scraped_periods SET busy_us = busy_us + 1", "does not fit its digest"),
        ("DELETE FROM scraped_periods", "does not fit its digest"),
        ("DELETE FROM scrape_rounds", "has rows and no such round"),
        ("UPDATE scrape_targets SET url = 'http://elsewhere'", "does not fit its digest"),
    ],
)
def test_the_audit_finds_what_was_changed(sqlite_db: Database, change: str, says: str) -> None:
    open_ledger(sqlite_db)
    add(sqlite_db, "e")
    write(sqlite_db, collector(sqlite_db), T0, (targets(sqlite_db)["e"].number, FULL))
    assert audit.audit(sqlite_db) == ()

    def work(connection) -> None:
        for table in ("scraped_periods", "scrape_targets"):
            connection.execute(text(f"DROP TRIGGER {table}_no_update"))
        connection.execute(text(change))

    sqlite_db.write(work)
    assert any(says in str(breach) for breach in audit.audit(sqlite_db))


def test_a_round_is_written_once(sqlite_db: Database) -> None:
    by = collector(sqlite_db)
    write(sqlite_db, by, T0)
    with pytest.raises(StoreError):
        write(sqlite_db, by, T0)
    assert PERIOD_US == 15 * S
