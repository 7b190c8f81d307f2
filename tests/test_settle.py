"""Settling through the database: worked figures, revisions and reversals, closed months, late facts, two at once."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from booking import (
    DAY,
    HOUR,
    LATE,
    MINUTE,
    A,
    B,
    book,
    change_price,
    deliver,
    give_asset,
    open_ledger,
    request,
    stretch,
    worked_example,
)
from sqlalchemy import func, select, text

from ledger import ingest
from ledger.audit import audit, rebuild_rollups
from ledger.core.records import PERIOD_US, Admission, Dimensions, Outcome, Shard
from ledger.core.settlement import Basis, Terms
from ledger.errors import StoreError, UsageError
from ledger.intervals import Desk, group_of
from ledger.pricebook import Price
from ledger.reports.monthly import listed_months, read_sessions, read_statement
from ledger.reports.usage import usage
from ledger.settle import close_month, provisional, settle
from ledger.store import book_reads, book_tables, books, findings, prices, terms
from ledger.store.database import connect

if TYPE_CHECKING:
    from ledger.store.database import Database

NOVEMBER = "2026-11"
PRICE = 21_600_000_000
"""An hour's, of which ten minutes are 3.60."""
DECEMBER = T0 + 28 * DAY


def lines(db: Database, month: str = NOVEMBER, basis: Basis = Basis.CAPACITY) -> dict[str, int]:
    with db.read() as snapshot:
        return {
            f"{line.tenant}/{line.kind}" if line.tenant else line.account: line.amount_nanos
            for line in book_reads.month_lines(snapshot, month, basis)
            if line.month == month and line.amount_nanos
        }


def rows(db: Database, table: str) -> list[tuple]:
    with db.read() as snapshot:
        return [tuple(row) for row in snapshot.execute(text(f"SELECT * FROM {table}"))]


def everything(db: Database) -> dict[str, list[tuple]]:
    return {each.name: sorted(rows(db, each.name), key=str) for each in book_tables.GUARDED + book_tables.MONEY_ROWS}


def ten_minutes(db: Database, start_us: int = T0, **more: object) -> Life:
    """Engine-a on gpu-0 for 3.60 in all: A holds 500 of 1000 blocks all through, B owns 100 cached ones."""
    open_ledger(db)
    give_asset(db, "gpu-0", "engine-a", PRICE, from_us=start_us, to_us=start_us + 10 * MINUTE)
    life = Life(start_us=start_us)
    deliver(db, life, [life.announce()])
    deliver(db, life, stretch(life, start_us + 10 * MINUTE, {A: (500, 0), B: (0, 100)}, opens=True, closes=True))
    return life


# --- figures --------------------------------------------------------------------------------------------


def test_the_worked_example_comes_out_of_the_database(db: Database) -> None:
    worked_example(db)
    assert book(db).booked == 1
    booked = lines(db)
    # Each of the two prices of the second GPU is rounded down once, hence …666.
    assert booked == {
        "A/active": 1_216_666_666,
        "B/active": 1_290_000_000,
        "B/cached": 98_800_000,
        "idle": 3_661_200_000,
    }
    assert sum(booked.values()) == sum(lines(db, basis=Basis.FULL).values()) == 6_266_666_666
    assert audit(db) == ()


def test_sessions_sum_to_their_tenants_lines_under_both_bases(sqlite_db: Database) -> None:
    worked_example(sqlite_db)
    book(sqlite_db)
    for basis in Basis:
        sums: dict[str, int] = {}
        for line in read_sessions(sqlite_db, NOVEMBER, now_us=LATE, basis=basis):
            key = f"{line.dims.tenant}/{line.kind}"
            sums[key] = sums.get(key, 0) + line.amount_nanos
        tenants = {key: nanos for key, nanos in lines(sqlite_db, basis=basis).items() if "/" in key}
        assert sums == tenants


def test_an_engine_that_lives_ten_minutes_leaves_its_gpu_vacant(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0, to_us=T0 + HOUR)
    life = Life(start_us=T0 + 5 * MINUTE)
    deliver(sqlite_db, life, [life.announce()])
    deliver(sqlite_db, life, stretch(life, T0 + 15 * MINUTE, {A: (1000, 0)}, opens=True, closes=True))
    book(sqlite_db)
    assert lines(sqlite_db) == {"A/active": 600_000_000, "vacant": 3_000_000_000}


def test_an_asset_that_nobody_has_is_vacant_in_a_group_of_its_own(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", None, 3_600_000_000, from_us=T0, to_us=T0 + 2 * HOUR)
    assert book(sqlite_db).booked == 2
    assert lines(sqlite_db) == {"vacant": 7_200_000_000}
    assert {row[1] for row in rows(sqlite_db, "transactions")} == {"asset:gpu-0"}


def test_two_engines_on_one_gpu_settle_apart_and_close_to_the_nano(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_599_999_999, from_us=T0, to_us=T0 + HOUR, share_ppm=333_333)
    give_asset(sqlite_db, "gpu-0", "engine-b", None, from_us=T0, to_us=T0 + HOUR, share_ppm=333_333)
    for engine in ("engine-a", "engine-b"):
        life = Life(engine=engine)
        deliver(sqlite_db, life, stretch(life, T0 + 5 * MINUTE, {A: (1, 0)}, opens=True, closes=True))
    assert book(sqlite_db).booked == 3
    assert sum(lines(sqlite_db).values()) == 3_599_999_999
    assert audit(sqlite_db) == ()


def test_a_gpu_that_was_only_seen_is_priced_by_a_rule_and_paid_for_while_it_is_seen(db: Database) -> None:
    open_ledger(db)
    rule = Price(model="H200", nanos_per_hour=3_600_000_000, valid_from_us=T0 - DAY)
    db.write(lambda connection: prices.add_price(connection, rule, currency="USD", now_us=T0))
    life = Life()
    seen = [Shard(gpu_uuid="GPU-1", gpu_model="H200")]
    deliver(db, life, stretch(life, T0 + 10 * MINUTE, {A: (1000, 0)}, opens=True, closes=True, shards=seen))
    book(db)
    assert lines(db) == {"A/active": 600_000_000}


def test_a_gpu_without_a_price_is_unpriced_and_never_free(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    life = Life()
    seen = [Shard(gpu_uuid="GPU-1", gpu_model="unheard-of")]
    deliver(sqlite_db, life, stretch(life, T0 + 10 * MINUTE, {A: (1000, 0)}, opens=True, closes=True, shards=seen))
    book(sqlite_db)
    statement = read_statement(sqlite_db, NOVEMBER, now_us=LATE)
    assert [(line.account, line.amount_nanos, line.asset_us) for line in statement.lines] == [
        ("unpriced", 0, 600_000_000)
    ]


def test_use_without_any_asset_is_a_finding(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    life = Life()
    deliver(sqlite_db, life, stretch(life, T0 + MINUTE, {A: (1, 0)}, opens=True, closes=True))
    assert book(sqlite_db).findings == 1
    with sqlite_db.read() as snapshot:
        assert [finding.code for finding in findings.list_findings(snapshot)] == ["no_asset"]


def test_a_zone_with_half_hours_is_settled_by_quarters_that_close_like_hours(sqlite_db: Database) -> None:
    open_ledger(sqlite_db, zone="Asia/Kolkata")
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0, to_us=T0 + HOUR)
    life = Life()
    held = {A: (500, 0), B: (0, 0)}
    deliver(sqlite_db, life, stretch(life, T0 + 5 * MINUTE, {A: (500, 0), B: (0, 100)}, opens=True))
    # B is quiet from now on: only the hour's standing counts tell what it owns in the last quarter.
    deliver(sqlite_db, life, stretch(life, T0 + HOUR, {A: (500, 0)}, quiet={B: (0, 100)}, closes=True))
    assert held
    assert book(sqlite_db).booked == 4
    assert lines(sqlite_db) == {"A/active": 1_800_000_000, "B/cached": 43_200_000, "idle": 1_756_800_000}
    assert audit(sqlite_db) == ()


# --- revisions ------------------------------------------------------------------------------------------


def test_settling_again_changes_nothing(sqlite_db: Database) -> None:
    ten_minutes(sqlite_db)
    book(sqlite_db)
    before = everything(sqlite_db)
    again = book(sqlite_db, now_us=LATE + HOUR)
    assert (again.booked, again.revised, again.findings) == (0, 0, 0)
    assert everything(sqlite_db) == before


def test_a_price_that_changes_is_booked_as_a_revision_that_takes_the_first_back(db: Database) -> None:
    ten_minutes(db)
    book(db)
    change_price(db, "gpu-0", 2 * PRICE, T0 + 5 * MINUTE)
    assert book(db).revised == 1
    first, second = sorted(rows(db, "transactions"), key=lambda row: row[4])
    assert (first[4], second[4], second[12]) == (1, 2, first[0])
    assert sum(lines(db).values()) == 5_400_000_000
    with db.read() as snapshot:
        p = book_tables.postings.c
        undone = snapshot.execute(select(p.account, p.amount_nanos).where(p.reversal == 1)).all()
        booked = snapshot.execute(select(p.account, p.amount_nanos).where(p.transaction_id == first[0])).all()
        assert snapshot.execute(select(func.sum(p.amount_nanos))).scalar_one() == 0
    assert sorted((account, -nanos) for account, nanos in undone) == sorted(tuple(row) for row in booked)
    assert audit(db) == ()


def test_a_price_that_ends_books_no_other_hour_again(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 1_234_567_891, from_us=T0, to_us=T0 + 3 * HOUR)
    book(sqlite_db)
    change_price(sqlite_db, "gpu-0", 7, T0 + 15 * MINUTE, to_us=T0 + 17 * MINUTE)
    assert book(sqlite_db).revised == 1


def test_a_late_batch_is_booked_where_it_was_unobserved(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", PRICE, from_us=T0, to_us=T0 + 10 * MINUTE)
    life = Life()
    batches = list(stretch(life, T0 + 10 * MINUTE, {A: (1000, 0)}, opens=True, closes=True))
    raws = [life.send(batch) for batch in batches]
    for raw, batch in zip(raws, batches, strict=True):
        if batch.seq != 30:
            ingest.accept(sqlite_db, raw, batch.end_us)
    book(sqlite_db)
    assert lines(sqlite_db) == {"A/active": 3_510_000_000, "unobserved": 90_000_000}
    ingest.accept(sqlite_db, raws[29], LATE)
    assert book(sqlite_db).revised == 1
    assert lines(sqlite_db) == {"A/active": 3_600_000_000}
    assert audit(sqlite_db) == ()


def test_a_share_that_is_assigned_afterwards_takes_the_time_from_the_vacant_group(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", None, PRICE, from_us=T0, to_us=T0 + 10 * MINUTE)
    life = Life()
    deliver(sqlite_db, life, stretch(life, T0 + 10 * MINUTE, {A: (1000, 0)}, opens=True, closes=True))
    book(sqlite_db)
    assert lines(sqlite_db) == {"vacant": 3_600_000_000}
    give_asset(sqlite_db, "gpu-0", "engine-a", None, from_us=T0, to_us=T0 + 10 * MINUTE)
    book(sqlite_db)
    assert lines(sqlite_db) == {"A/active": 3_600_000_000}
    assert audit(sqlite_db) == ()


def test_terms_that_are_corrected_settle_the_open_month_again(sqlite_db: Database) -> None:
    ten_minutes(sqlite_db)
    book(sqlite_db)
    sqlite_db.write(
        lambda connection: terms.set_terms(connection, NOVEMBER, Terms(cached_weight_milli=2500), now_us=LATE)
    )
    assert book(sqlite_db).revised == 1
    assert lines(sqlite_db)["B/cached"] == 360_000_000


def test_facts_that_retention_took_leave_their_settlement_as_it_was(sqlite_db: Database) -> None:
    ten_minutes(sqlite_db)
    book(sqlite_db)
    before = everything(sqlite_db)
    with sqlite_db.engine.begin() as connection:
        connection.execute(text("DELETE FROM batches WHERE seq > 20"))
    assert book(sqlite_db).revised == 0
    assert everything(sqlite_db) == before


# --- months ---------------------------------------------------------------------------------------------


def test_a_closed_month_keeps_its_statement_and_what_comes_late_is_an_adjustment(db: Database) -> None:
    ten_minutes(db)
    book(db)
    assert close_month(db, NOVEMBER, now_us=LATE)
    closed = read_statement(db, NOVEMBER, now_us=LATE)
    change_price(db, "gpu-0", 2 * PRICE, T0)
    assert book(db).revised == 1
    assert read_statement(db, NOVEMBER, now_us=LATE) == closed
    december = read_statement(db, "2026-12", now_us=LATE)
    assert december.lines == ()
    assert {(a.month, a.account, a.tenant, a.kind, a.amount_nanos) for a in december.adjustments} == {
        (NOVEMBER, "tenant", "A", "active", 1_800_000_000),
        (NOVEMBER, "tenant", "B", "cached", 43_200_000),
        (NOVEMBER, "idle", "", "", 1_756_800_000),
    }
    assert audit(db) == ()


def test_an_adjustment_that_is_corrected_replaces_the_one_before(sqlite_db: Database) -> None:
    ten_minutes(sqlite_db)
    close_month(sqlite_db, NOVEMBER, now_us=LATE)
    change_price(sqlite_db, "gpu-0", 2 * PRICE, T0)
    book(sqlite_db)
    change_price(sqlite_db, "gpu-0", PRICE, T0)
    book(sqlite_db)
    assert read_statement(sqlite_db, "2026-12", now_us=LATE).adjustments == ()
    assert audit(sqlite_db) == ()


def test_statements_are_chained_and_months_close_in_order(db: Database) -> None:
    open_ledger(db)
    give_asset(db, "gpu-0", None, 3_600_000_000, from_us=DECEMBER - HOUR, to_us=DECEMBER + HOUR)
    book(db, until_us=DECEMBER + DAY)
    with pytest.raises(UsageError, match="before 2026-11"):
        close_month(db, "2026-12", now_us=DECEMBER + 40 * DAY)
    with pytest.raises(UsageError, match="cannot be closed before"):
        close_month(db, "2026-12", now_us=DECEMBER)
    assert close_month(db, NOVEMBER, now_us=DECEMBER + 40 * DAY)
    assert not close_month(db, NOVEMBER, now_us=DECEMBER + 41 * DAY)
    assert close_month(db, "2026-12", now_us=DECEMBER + 40 * DAY)
    first, second = sorted(rows(db, "statements"))
    assert second[6] == first[7]
    assert first[6] == ""
    assert json.loads(first[5])["capacity"]["bill_nanos"] == first[4] == 3_600_000_000
    assert audit(db) == ()


def test_a_month_before_the_ledger_begins_is_not_closed(db: Database) -> None:
    open_ledger(db)
    with pytest.raises(UsageError, match="the ledger is empty; add assets"):
        close_month(db, NOVEMBER, now_us=LATE)
    give_asset(db, "gpu-0", None, 3_600_000_000, from_us=DECEMBER - HOUR)
    with pytest.raises(UsageError, match="2026-10 cannot be closed: the ledger begins in 2026-11"):
        close_month(db, "2026-10", now_us=LATE)
    with pytest.raises(UsageError, match="before 2026-11"):  # nothing is booked of either yet
        close_month(db, "2026-12", now_us=DECEMBER + 40 * DAY)
    assert close_month(db, NOVEMBER, now_us=LATE)
    assert listed_months(db) == (NOVEMBER, "2026-12")


def test_a_closed_month_is_listed_whatever_is_booked(db: Database) -> None:
    open_ledger(db)
    give_asset(db, "gpu-0", None, 3_600_000_000, from_us=DECEMBER - HOUR, to_us=DECEMBER)
    for month in (NOVEMBER, "2026-12"):
        assert close_month(db, month, now_us=DECEMBER + 40 * DAY)
    assert listed_months(db) == (NOVEMBER, "2026-12", "2027-01")


def test_the_journal_and_statements_refuse_to_be_changed(db: Database) -> None:
    ten_minutes(db)
    close_month(db, NOVEMBER, now_us=LATE)
    for table in ("transactions", "postings", "statements", "prices", "settings"):
        for statement in (
            f"DELETE FROM {table}",
            f"UPDATE {table} SET {'kind' if table == 'postings' else 'digest'} = ''",
        ):
            if table == "transactions" or "postings" not in table:
                with pytest.raises(StoreError, match="append-only"):
                    db.write(lambda connection, said=statement: connection.execute(text(said)))
    with pytest.raises(StoreError, match="append-only"):
        db.write(lambda connection: connection.execute(text("UPDATE postings SET amount_nanos = 0")))


def test_another_currency_or_zone_is_refused_once_something_is_booked(sqlite_db: Database) -> None:
    ten_minutes(sqlite_db)
    book(sqlite_db)
    with pytest.raises(UsageError, match="USD"):
        open_ledger(sqlite_db, currency="EUR")
    with pytest.raises(UsageError, match="zone"):
        open_ledger(sqlite_db, zone="Asia/Tokyo")


# --- the open hour --------------------------------------------------------------------------------------


def test_the_open_hour_is_provisional_up_to_the_last_boundary_that_was_delivered(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0)
    life = Life()
    deliver(sqlite_db, life, stretch(life, T0 + 70 * MINUTE, {A: (1000, 0)}, opens=True))
    book(sqlite_db, until_us=T0 + 70 * MINUTE)
    now_us = T0 + 70 * MINUTE + 7_000_000
    (part,) = provisional(sqlite_db, now_us=now_us)
    assert (part.from_us, part.until_us) == (T0 + HOUR, T0 + 70 * MINUTE)
    statement = read_statement(sqlite_db, NOVEMBER, now_us=now_us)
    assert statement.provisional_from_us == T0 + HOUR
    assert statement.bill_nanos == 4_200_000_000
    assert [(line.tenant, line.amount_nanos) for line in statement.lines] == [("A", 4_200_000_000)]


def test_figures_of_the_open_hour_that_are_known_are_not_worked_out_again_until_more_is_settled(
    sqlite_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0)
    life = Life()
    deliver(sqlite_db, life, stretch(life, T0 + 130 * MINUTE, {A: (1000, 0)}, opens=True))
    book(sqlite_db, until_us=T0 + HOUR)
    now_us = T0 + 130 * MINUTE + 7_000_000
    known = provisional(sqlite_db, now_us=now_us)
    whole = {"start_us": T0, "end_us": T0 + 130 * MINUTE}
    bill, used = read_statement(sqlite_db, NOVEMBER, now_us=now_us), usage(sqlite_db, **whole)
    with monkeypatch.context() as patched:
        patched.setattr(Desk, "settlement", None)
        assert read_statement(sqlite_db, NOVEMBER, now_us=now_us, known=known) == bill
        assert usage(sqlite_db, **whole, known=known) == used
    book(sqlite_db, until_us=T0 + 2 * HOUR)
    later = read_statement(sqlite_db, NOVEMBER, now_us=now_us, known=known)
    assert (later.provisional_from_us, later.bill_nanos) == (T0 + 2 * HOUR, bill.bill_nanos)
    assert usage(sqlite_db, **whole, known=known) == used


def test_an_engine_that_lags_more_than_a_minute_does_not_hold_the_others_back(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", 3_600_000_000, from_us=T0)
    life = Life()
    deliver(sqlite_db, life, stretch(life, T0 + 5 * MINUTE, {A: (1000, 0)}, opens=True))
    (part,) = provisional(sqlite_db, now_us=T0 + 8 * MINUTE)
    assert part.until_us == T0 + 7 * MINUTE
    booked = {line.account: line.amount_nanos for made in part.settlements for line in made.allocation.lines}
    assert booked["unobserved"] == 120_000_000


# --- two at once, and roll-ups --------------------------------------------------------------------------


def test_two_settlers_at_once_book_everything_once(db: Database, store_url: str) -> None:
    ten_minutes(db)
    give_asset(db, "gpu-1", None, 1_000_000_000, from_us=T0, to_us=T0 + 20 * HOUR)
    start = threading.Barrier(2)
    done = []

    def run() -> None:
        own = connect(store_url, durable=False)
        start.wait()
        done.append(book(own))
        own.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(settled.booked for settled in done) == 21
    assert {row[4] for row in rows(db, "transactions")} == {1}
    assert audit(db) == ()


def test_a_settler_that_comes_second_writes_nothing(db: Database) -> None:
    ten_minutes(db)
    with db.read() as snapshot:
        desk = Desk(snapshot, NOVEMBER, T0 + HOUR)
        made = desk.settlement(desk.frame(group_of("engine:engine-a"), T0, T0 + HOUR))
    book(db)
    before = everything(db)
    with pytest.raises(StoreError):
        db.write(lambda connection: books.save(db, connection, made, None, now_us=LATE))
    assert everything(db) == before


def test_rollups_that_are_rebuilt_equal_those_that_are_kept(sqlite_db: Database) -> None:
    worked_example(sqlite_db)
    book(sqlite_db)
    assert rebuild_rollups(sqlite_db) == ()
    sqlite_db.write(
        lambda connection: connection.execute(text("UPDATE usage_hours SET active_block_us = active_block_us + 1"))
    )
    assert {breach.law for breach in rebuild_rollups(sqlite_db)} == {"roll-up", "law 2"}


# --- waste ----------------------------------------------------------------------------------------------


def test_waste_is_shown_by_kind_with_what_it_cost(sqlite_db: Database) -> None:
    db = sqlite_db
    open_ledger(db, kv_share_ppm=500_000)
    give_asset(db, "gpu-0", "engine-a", 7_200_000_000, from_us=T0, to_us=T0 + 2 * HOUR)
    life = Life()
    batches = list(stretch(life, T0 + 2 * HOUR, {A: (500, 0), B: (0, 100)}, opens=True, closes=True))
    held = PERIOD_US * 100
    # Begun in the first hour and given up in the second: each part costs what its own hour cost.
    gone = request(
        "r1", A, {T0 + HOUR - PERIOD_US: (held, 0), T0 + HOUR: (held, 0)},
        outcome=Outcome.ABANDONED, ended_us=T0 + HOUR + PERIOD_US,
    )  # fmt: skip
    batches[0] = replace(batches[0], admissions=(Admission(request="r1", dims=A, prompt_tokens=10, arrived_us=T0),))
    batches[240] = replace(batches[240], requests=(gone,))
    deliver(db, life, batches)
    change_price(db, "gpu-0", 14_400_000_000, T0 + HOUR)
    book(db)

    def waste() -> dict[str, tuple[int, int | None]]:
        statement = read_statement(db, NOVEMBER, now_us=LATE)
        return {f"{memo.tenant}/{memo.memo}": (memo.quantity, memo.amount_nanos) for memo in statement.memos}

    found = waste()
    an_hour_of_kv = 3_600_000_000
    assert found["A/abandoned"] == (2 * held, an_hour_of_kv * held // (1000 * HOUR) * 3)
    assert found["B/cached"] == (100 * 2 * HOUR, an_hour_of_kv * 12 * 3 // 1000)
    assert found["A/unfilled"] == (3 * 500 * 2 * HOUR, an_hour_of_kv * 3 // 2 * 3 // 16)
    # A price of the first hour that is corrected afterwards reaches the second hour's line about it.
    change_price(db, "gpu-0", 14_400_000_000, T0)
    book(db)
    assert waste()["A/abandoned"] == (2 * held, an_hour_of_kv * held // (1000 * HOUR) * 4)
    assert audit(db) == ()


def test_a_statement_of_one_tenant_has_its_lines_and_their_sum(sqlite_db: Database) -> None:
    worked_example(sqlite_db)
    book(sqlite_db)
    statement = read_statement(sqlite_db, NOVEMBER, now_us=LATE, tenant="B")
    assert statement.bill_nanos == 1_388_800_000
    assert {line.tenant for line in statement.lines} == {"B"}
    assert all(line.dims.tenant == "B" for line in read_sessions(sqlite_db, NOVEMBER, now_us=LATE, tenant="B"))


def test_dimensions_that_no_batch_named_are_interned_for_the_rest_of_a_pool(sqlite_db: Database) -> None:
    db = sqlite_db
    open_ledger(db)
    give_asset(db, "gpu-0", "engine-a", PRICE, from_us=T0, to_us=T0 + 10 * MINUTE)
    life = Life()
    batches = list(stretch(life, T0 + 10 * MINUTE, {A: (500, 0)}, quiet={B: (0, 100)}, opens=True, closes=True))
    for batch in batches:
        raw = life.send(batch)
        if batch.seq not in (1, 2):  # with the first went the standing counts
            ingest.accept(db, raw, batch.end_us)
    book(db)
    assert lines(db)["unattributed/cached"] == 43_200_000 - 2 * 1_080_000
    assert Dimensions(tenant="unattributed") in {line.dims for line in read_sessions(db, NOVEMBER, now_us=LATE)}


def test_settling_an_empty_ledger_does_nothing(sqlite_db: Database) -> None:
    open_ledger(sqlite_db)
    assert settle(sqlite_db, until_us=LATE, now_us=LATE).booked == 0
    assert provisional(sqlite_db, now_us=LATE) == ()
    assert audit(sqlite_db) == ()
