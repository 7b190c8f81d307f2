"""A planted error of 1 in any stored number makes the audit speak, but for the few that docs/accounts.md lists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from batches import ALICE, T0, Life
from booking import HOUR, LATE, MINUTE, A, B, book, change_price, deliver, give_asset, open_ledger, request, stretch
from sampled import lawful_samples
from scraped import FULL
from sqlalchemy import Column, Connection, Integer, Table, select, text
from sqlalchemy.exc import IntegrityError

from ledger import ingest, wire
from ledger.audit import audit, audit_since, audit_snapshot
from ledger.core.records import PERIOD_US, Admission, Histogram, Holding, Origin, Outcome, PoolHolding, Shard
from ledger.pricebook import Asset, Price
from ledger.settle import close_month
from ledger.store import findings, prices, scrapes
from ledger.store.database import Database, connect
from ledger.store.findings import Finding, Severity
from ledger.store.migrate import declared
from ledger.store.tokens import SECRET_BYTES, Scope, add_token, note_use

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[1] / "docs" / "accounts.md"
USD2 = 2_000_000_000


def small_books(db: Database) -> None:
    """Something in every table: a revision, a closed month with an adjustment, a boot that lost, quarantine."""
    open_ledger(db, kv_share_ppm=700_000)
    give_asset(db, "gpu-0", "engine-a", 2_950_000_000, from_us=T0, to_us=T0 + HOUR, share_ppm=600_000)
    rule = Price(model="A100", nanos_per_hour=USD2, valid_from_us=T0, valid_to_us=T0 + 20 * HOUR)

    def configure(connection: Connection) -> None:
        prices.add_price(connection, rule, currency="USD", now_us=T0)
        prices.add_price(connection, replace(rule, nanos_per_hour=USD2 + 1), currency="USD", now_us=T0, supersedes=2)
        prices.end_assignment(connection, "gpu-0", "engine-a", T0 + HOUR, now_us=T0)
        prices.add_asset(connection, Asset(asset_id="spare", memory_bytes=80, valid_from_us=LATE), now_us=T0)
        prices.add_tenant(connection, prices.Tenant(tenant="A", display="Alpha", labels={"a": "b"}), now_us=T0)
        secret = bytes(SECRET_BYTES)
        add_token(connection, name="grafana", scope=Scope.READ, secret=secret, now_us=T0, ends_us=LATE)
        note_use(connection, {1: T0 + HOUR})

    db.write(configure)
    life = Life(origin=Origin.LIVE)
    deliver(db, life, [life.announce()])
    scrape(db)
    seen = (Shard(gpu_uuid="GPU-9", gpu_model="A100", share_ppm=900_000, pid=7, kv_bytes=2**35, weights_bytes=2**34),)
    first = {A: (400, 7), B: (30, 0), ALICE: (0, 5)}
    batches = list(stretch(life, T0 + MINUTE, first, opens=True, shards=seen))
    admissions = (
        Admission(request="r1", dims=A, prompt_tokens=10, arrived_us=T0, parent="p"),
        Admission(request="r2", dims=A, prompt_tokens=12, arrived_us=T0 + 1),
    )
    histogram = Histogram(name="step_us", labels=(), buckets=((3, 2),), count=3, total=50)
    ended = replace(
        request("r1", A, {T0: (30, 4), T0 + PERIOD_US: (20, 3)}, outcome=Outcome.ABORTED, ended_us=T0 + 29_000_000),
        scheduled_us=T0 + 5,
        first_token_us=T0 + 9,
        last_token_us=T0 + 10,
        other_holdings=(PoolHolding(pool="host", holding=Holding(active_block_us=5)),),
    )
    batches[0] = replace(batches[0], admissions=admissions, histograms=(histogram,))
    batches[1] = replace(batches[1], requests=(ended,))
    deliver(db, life, batches)
    deliver(db, life, stretch(life, T0 + 2 * MINUTE, {B: (10, 3)}, quiet={ALICE: (0, 5), A: (0, 7)}, closes=True))
    other = Life(boot_id="boot-2", start_us=T0 + MINUTE, origin=Origin.LIVE)
    late = other.period({A: (1, 0)}, opens=True, standing=True)
    assert ingest.accept(db, other.send(late), late.end_us).lost
    sampled = lawful_samples()
    sampled = replace(sampled, source=replace(sampled.source, origin=Origin.LIVE))
    assert ingest.accept(db, wire.encode(sampled), T0 + HOUR).samples is not None
    stranger = Life(engine="engine-b", origin=Origin.SIMULATED)
    assert ingest.accept(db, stranger.send(stranger.announce()), T0).status is ingest.Status.REFUSED
    book(db, T0 + 2 * HOUR)
    change_price(db, "gpu-0", 3_000_000_000, T0 + MINUTE)
    assert book(db, T0 + 2 * HOUR).revised
    found = Finding(
        code="test", severity=Severity.INFO, subject="engine:engine-a", start_us=T0, end_us=T0 + HOUR, detail="look"
    )
    db.write(lambda connection: findings.write_findings(connection, [found], now_us=LATE))
    close_month(db, "2026-11", now_us=LATE)
    change_price(db, "gpu-0", 3_100_000_000, T0 + 30_000_000)
    assert book(db, T0 + 2 * HOUR).revised


def scrape(db: Database) -> None:
    """An engine without a hook, and a period of it with every figure."""
    url = "http://engine-s:8000/metrics"
    db.write(lambda c: scrapes.add_target(c, engine="engine-s", url=url, kind="auto", now_us=T0))
    by = db.write(lambda c: scrapes.start_collector(c, collector="one", host="h"))
    record = replace(FULL, engine="engine-s", start_us=T0 + 1_000_000, end_us=T0 + PERIOD_US)
    scrapes.write_round(db, collector=by, start_us=T0, targets=1, records=[(1, record)], now_us=T0 + MINUTE)
    why = scrapes.Failing(since_us=T0, why="status", detail="it answers 503")
    db.write(lambda c: scrapes.note_failures(c, {1: why}))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Database]:
    """The small books without the triggers that would stop us from planting errors."""
    path = tmp_path_factory.mktemp("audit") / "books.db"
    path.write_bytes(sqlite_template.read_bytes())
    db = connect(f"sqlite:///{path}", durable=False)
    small_books(db)
    assert audit(db) == ()
    with db.engine.connect() as connection:
        for (name,) in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            connection.execute(text(f"DROP TRIGGER {name}"))
        connection.commit()
    yield db
    db.close()


def numbers() -> list[tuple[Table, Column]]:
    """Every column that holds numbers (one of them as text, since it passes 63 bits)."""
    return [
        (each, one)
        for each in declared().sorted_tables
        for one in each.columns
        if isinstance(one.type, Integer) or one.name == "weighted_block_us"
    ]


def speaks(db: Database, of: Table, one: Column) -> bool:
    """Whether the audit speaks wherever 1 is added: in the first and the last row that have a number there."""
    heard = []
    for order in (one.desc(),) if one.primary_key else (one.asc(), one.desc()):
        with db.engine.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA foreign_keys = OFF")  # before any transaction
            row = connection.execute(select(of).where(one.is_not(None)).order_by(order).limit(1)).mappings().first()
            assert row is not None, f"the books of this test have no {of.name}.{one.name}"
            value = str(int(row[one.name]) + 1) if isinstance(row[one.name], str) else row[one.name] + 1
            here = [key == row[key.name] for key in of.primary_key.columns]
            try:
                connection.execute(of.update().where(*here).values({one.name: value}))
                heard.append(any(True for _ in audit_snapshot(connection)))
            except IntegrityError:
                heard.append(True)  # the schema itself says no
            connection.rollback()
    return all(heard)


def documented() -> set[str]:
    section = DOCS.read_text().split("### Stored numbers that no law and no digest covers", 1)[1].split("\n#", 1)[0]
    return set(re.findall(r"`([a-z_]+\.[a-z_]+)`", section))


def test_an_error_of_one_in_any_number_is_heard_but_for_those_that_the_page_lists(planted: Database) -> None:
    silent = {f"{of.name}.{one.name}" for of, one in numbers() if not speaks(planted, of, one)}
    assert silent == documented()


@pytest.mark.parametrize(("hour", "found"), [(0, False), (1, True)])
def test_an_audit_of_what_is_new_settles_the_hours_since_again_and_no_older_ones(
    sqlite_db: Database, hour: int, found: bool
) -> None:
    open_ledger(sqlite_db)
    give_asset(sqlite_db, "gpu-0", "engine-a", USD2, from_us=T0)
    life = Life(origin=Origin.LIVE)
    deliver(sqlite_db, life, stretch(life, T0 + HOUR + MINUTE, {A: (400, 7)}, opens=True, closes=True))
    book(sqlite_db, T0 + 2 * HOUR)
    assert audit_since(sqlite_db, T0) == audit_since(sqlite_db, T0 + HOUR) == ()

    def tamper(connection: Connection) -> None:
        at_us = T0 + hour * HOUR
        for (name,) in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
            connection.execute(text(f"DROP TRIGGER {name}"))
        lines = "UPDATE basis_lines SET amount_nanos = amount_nanos + 1 WHERE start_us = :at_us"
        assert connection.execute(text(lines), {"at_us": at_us}).rowcount

    sqlite_db.write(tamper)
    assert audit(sqlite_db) != ()
    assert audit_since(sqlite_db, T0) != ()
    assert bool(audit_since(sqlite_db, T0 + HOUR)) == found
