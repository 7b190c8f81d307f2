"""Books of engines that are only scraped: settled, revised, closed and audited like any other, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from booking import HOUR, LATE, MINUTE, A, book, change_price, deliver, give_asset, open_ledger
from booking import stretch as hooked
from scraped import record

from ledger.audit import audit
from ledger.core.records import PERIOD_US, Origin
from ledger.core.settlement import Basis
from ledger.reports.usage import By, usage
from ledger.settle import booked_statement, close_month, provisional
from ledger.store import findings, retention, scrapes, terms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.scraped import ScrapedPeriod
    from ledger.reports.statement import Statement
    from ledger.store.database import Database

S = 1_000_000
GPU = 60_000_000_000
"""An hour: a minute costs 1."""


def target(db: Database, engine: str = "scraped-0") -> int:
    db.write(lambda c: scrapes.add_target(c, engine=engine, url=f"http://{engine}/", kind="auto", now_us=T0))
    with db.read() as connection:
        return {each.engine: each.number for each in scrapes.list_targets(connection)}[engine]


def scrape(db: Database, by: int, number: int, records: Iterable[ScrapedPeriod]) -> None:
    for each in records:
        period_us = each.start_us - each.start_us % PERIOD_US
        scrapes.write_round(
            db, collector=by, start_us=period_us, targets=1, records=[(number, each)], now_us=each.end_us + 52 * S
        )


def watched(start_us: int, end_us: int, *, busy_us: int = PERIOD_US, engine: str = "scraped-0", **more: object):
    return [
        record(at, busy_us=busy_us, engine=engine, kind="vllm", model="m", output_tokens=10, computed_tokens=3, **more)
        for at in range(start_us, end_us, PERIOD_US)
    ]


def collector(db: Database, name: str = "one") -> int:
    return db.write(lambda c: scrapes.start_collector(c, collector=name, host="h"))


def statement(db: Database, month: str = "2026-11") -> Statement:
    with db.read() as snapshot:
        return booked_statement(snapshot, terms.read_terms(snapshot), month, Basis.CAPACITY)


def lines(of: Statement) -> dict[str, int]:
    return {f"{line.tenant}/{line.kind}" if line.tenant else line.account: line.amount_nanos for line in of.lines}


def an_hour(db: Database) -> Database:
    open_ledger(db)
    give_asset(db, "gpu-0", "scraped-0", GPU, to_us=T0 + 2 * HOUR)
    scrape(db, collector(db), target(db), watched(T0, T0 + HOUR, busy_us=5 * S))
    return db


@pytest.fixture
def ledger(sqlite_db: Database) -> Database:
    return an_hour(sqlite_db)


def test_an_hour_is_booked_as_compute_and_idle_and_the_statement_says_how_it_is_known(db: Database) -> None:
    ledger = an_hour(db)
    assert book(ledger, T0 + HOUR).booked == 1
    made = statement(ledger)
    assert lines(made) == {"unattributed/compute": 20_000_000_000, "idle": 40_000_000_000}
    assert made.bill_nanos == GPU
    (time,) = made.engines
    assert (time.engine, time.method, time.observed_us, time.step_us) == ("scraped-0", "scraped", HOUR, HOUR // 3)
    assert audit(ledger) == ()


def test_the_hour_after_the_last_answer_is_unobserved_for_15_minutes_and_then_vacant(ledger: Database) -> None:
    book(ledger, T0 + 2 * HOUR)
    assert lines(statement(ledger)) == {
        "unattributed/compute": 20_000_000_000,
        "idle": 40_000_000_000,
        "unobserved": 15_000_000_000,
        "vacant": 45_000_000_000,
    }
    assert audit(ledger) == ()


def test_settling_again_changes_nothing_and_a_late_record_revises_its_hour(ledger: Database) -> None:
    book(ledger, T0 + 2 * HOUR)
    assert book(ledger, T0 + 2 * HOUR).revised == 0
    number = target(ledger)
    scrape(ledger, collector(ledger, "two"), number, watched(T0 + HOUR, T0 + HOUR + MINUTE, busy_us=0))
    assert book(ledger, T0 + 2 * HOUR).revised == 1
    assert lines(statement(ledger))["idle"] == 41_000_000_000
    assert lines(statement(ledger))["vacant"] == 44_000_000_000
    assert audit(ledger) == ()


def test_a_changed_price_revises_and_a_closed_month_takes_an_adjustment(ledger: Database) -> None:
    book(ledger, T0 + 2 * HOUR)
    close_month(ledger, "2026-11", now_us=LATE)
    change_price(ledger, "gpu-0", 2 * GPU, T0 + 30 * MINUTE)
    assert book(ledger, T0 + 2 * HOUR).revised == 2
    assert lines(statement(ledger)) == {
        "unattributed/compute": 20_000_000_000,
        "idle": 40_000_000_000,
        "unobserved": 15_000_000_000,
        "vacant": 45_000_000_000,
    }
    december = statement(ledger, "2026-12").adjustments
    assert sum(each.amount_nanos for each in december) == 90_000_000_000
    assert {each.month for each in december} == {"2026-11"}
    assert audit(ledger) == ()


def test_usage_shows_the_time_the_tokens_and_the_cost_under_a_session_and_a_pool_of_their_own(ledger: Database) -> None:
    book(ledger, T0 + HOUR)
    span = {"start_us": T0, "end_us": T0 + HOUR}
    (session,) = usage(ledger, **span, by=By.SESSION)
    assert (session.tenant, session.session) == ("unattributed", "scraped")
    assert (session.compute_us, session.compute_nanos) == (HOUR // 3, 20_000_000_000)
    assert (session.output_tokens, session.computed_tokens) == (2400, 720)
    (model,) = usage(ledger, **span, by=By.MODEL)
    assert (model.model, model.compute_nanos) == ("m", 20_000_000_000)
    (pool,) = usage(ledger, **span, by=By.POOL)
    assert (pool.engine, pool.pool, pool.compute_nanos) == ("scraped-0", "scraped", 20_000_000_000)


def test_the_open_hour_is_shown_up_to_what_was_watched(ledger: Database) -> None:
    book(ledger, T0 + HOUR)
    scrape(ledger, collector(ledger, "two"), target(ledger), watched(T0 + HOUR, T0 + HOUR + 10 * MINUTE))
    now_us = T0 + HOUR + 10 * MINUTE + 50 * S
    (shown,) = provisional(ledger, now_us=now_us)
    assert shown.until_us == T0 + HOUR + 10 * MINUTE
    (made,) = shown.settlements
    assert [(line.account.value, line.amount_nanos) for line in made.allocation.lines] == [("tenant", 10_000_000_000)]


def test_time_of_an_engine_with_no_asset_is_a_finding_and_no_money(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    scrape(sqlite_db, collector(sqlite_db), target(sqlite_db), watched(T0, T0 + HOUR))
    assert book(sqlite_db, T0 + HOUR).booked == 1
    with sqlite_db.read() as connection:
        assert [finding.code for finding in findings.list_findings(connection)] == ["no_asset"]
    assert lines(statement(sqlite_db)) == {}
    assert audit(sqlite_db) == ()


def test_a_hook_and_a_scrape_of_one_engine_share_no_money(sqlite_db: Database) -> None:
    """A hook for half an hour, cleanly closed; scraped all the hour, from minute 40 on by a process of its own."""
    open_ledger(sqlite_db, kv_share_ppm=500_000)
    give_asset(sqlite_db, "gpu-0", "engine-a", GPU, to_us=T0 + HOUR)
    life = Life(start_us=T0, origin=Origin.LIVE)
    deliver(sqlite_db, life, [life.announce()])
    deliver(sqlite_db, life, hooked(life, T0 + 30 * MINUTE, {A: (400, 0)}, opens=True, closes=True))
    number = target(sqlite_db, "engine-a")
    scrape(
        sqlite_db, collector(sqlite_db), number, watched(T0, T0 + 30 * MINUTE, engine="engine-a", started_us=T0 - HOUR)
    )
    again = watched(T0 + 40 * MINUTE, T0 + HOUR, engine="engine-a", started_us=T0 + 35 * MINUTE)
    scrape(sqlite_db, collector(sqlite_db, "two"), number, again)
    book(sqlite_db, T0 + HOUR)
    found = lines(statement(sqlite_db))
    assert found["unattributed/compute"] == 20_000_000_000
    assert found["vacant"] + found.get("starting", 0) == 10_000_000_000
    assert sum(found.values()) == GPU
    assert {(time.engine, time.method) for time in statement(sqlite_db).engines} == {
        ("engine-a", "hook"),
        ("engine-a", "scraped"),
    }
    rows = {row.pool: row for row in usage(sqlite_db, start_us=T0, end_us=T0 + HOUR, by=By.POOL)}
    assert rows["scraped"].cost_nanos == 20_000_000_000
    assert rows["gpu"].cost_nanos == found["A/active"] + found.get("A/compute", 0)
    assert sum(row.cost_nanos for row in usage(sqlite_db, start_us=T0, end_us=T0 + HOUR, by=By.REQUEST)) == sum(
        row.cost_nanos for row in usage(sqlite_db, start_us=T0, end_us=T0 + HOUR, by=By.TENANT)
    )
    assert audit(sqlite_db) == ()


def test_retention_takes_records_and_leaves_what_is_booked(ledger: Database) -> None:
    book(ledger, T0 + HOUR)
    before = lines(statement(ledger))
    ledger.retention_days = 2
    assert retention.delete_old_facts(ledger, T0 + 100 * HOUR) == 240
    assert book(ledger, T0 + HOUR).revised == 0
    assert lines(statement(ledger)) == before
    assert audit(ledger) == ()
