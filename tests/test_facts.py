"""Facts stored: a batch comes back exactly, a planted error shows, a day goes whole. On both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batches import ALICE, BOB, T0, Life, arbitrary, lawful
from hypothesis import HealthCheck, given, settings
from sqlalchemy import text

from ledger import limits, wire
from ledger.core.records import Batch, PoolClose
from ledger.ingest import Status, accept
from ledger.refusals import Reason
from ledger.store import fact_audit, fact_reads, facts, quarantine, retention, tables

if TYPE_CHECKING:
    from ledger.store.database import Database

NOW = T0 + 3_600_000_000
DAY = limits.DAY_US


def put(db: Database, batch: Batch, prev: bytes = b"") -> int:
    """Store ``batch`` without asking whether it is lawful; the number of its boot."""
    facts.ensure_day(db, batch.start_us)
    digest = wire.digest(batch, prev)
    receipt = facts.Receipt(
        digest=digest, prev=prev, kept_digest=digest, received_us=NOW, ahead=False, missing_before=0
    )

    def work(connection) -> tuple[int, facts.Learned]:
        learned = facts.Learned()
        boot = facts.add_boot(connection, batch.source.engine, batch.boot, NOW)
        facts.insert_batch(db, connection, batch, boot=boot, receipt=receipt, learned=learned)
        facts.flush(connection, learned)
        return boot, learned

    boot, learned = db.write(work)
    facts.remember(db, learned)
    return boot


def stored(db: Database, boot: int) -> list[fact_reads.StoredBatch]:
    with db.read() as connection:
        return [
            batch
            for known in fact_reads.boots_of(connection)
            if known.number == boot
            for batch in fact_reads.stored_batches(connection, known)
        ]


def check_identity(db: Database, batch: Batch, numbers: list[int]) -> None:
    numbers.append(0)
    unique = Batch(**{
        **{name: getattr(batch, name) for name in Batch.__slots__},
        "boot": type(batch.boot)(
            boot_id=f"{len(numbers)}", anchor_us=batch.boot.anchor_us, started_us=batch.boot.started_us
        ),
    })  # fmt: skip
    (found,) = stored(db, put(db, unique, b"\x05" * 32))
    assert found.batch == unique
    assert wire.digest(found.batch, found.prev) == found.kept_digest


def test_any_batch_comes_back_exactly_from_sqlite(sqlite_db: Database) -> None:
    numbers: list[int] = []

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(arbitrary)
    def check(batch) -> None:
        check_identity(sqlite_db, batch, numbers)

    check()


def test_any_batch_comes_back_exactly_from_postgresql(postgres_url: str) -> None:
    from ledger.store.database import connect  # noqa: PLC0415 - beside its only use

    db, numbers = connect(postgres_url), []

    @settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(arbitrary)
    def check(batch) -> None:
        # Every day of a century would be nine partitions: some days are enough.
        day_us = (batch.start_us // DAY % 3 + 20_000) * DAY
        check_identity(db, Batch(**{**{n: getattr(batch, n) for n in Batch.__slots__}, "start_us": day_us}), numbers)

    check()
    db.close()


COVERED = [
    (table, column)
    for table in (tables.batches, *tables.OF_BOOTS, *tables.PARTITIONED)
    for column in table.columns
    if column.name not in {"day", "boot", "pos", "sub", "source", "received_us", "ahead", "missing_before"}
    and column is not tables.batches.c.digest
]
"""All but places, what receipt noted, and the digest that the next batch answers for."""


@pytest.mark.parametrize(("table", "column"), COVERED, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_error_of_one_is_found(sqlite_db: Database, table, column) -> None:
    example = lawful()
    put(
        sqlite_db, replace(example, closes=(PoolClose(pool="gpu", at_us=example.end_us, reason="sleep"),)), b"\x05" * 32
    )
    with sqlite_db.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) == []

    def plant(connection) -> int:
        connection.exec_driver_sql(f"DROP TRIGGER {table.name}_no_update")
        name = f'"{column.name}"'
        kind = str(column.type.compile())
        if kind == "TEXT":
            change = f"'{REPLACED[column.name]}'" if column.name in REPLACED else f"coalesce({name}, '') || 'x'"
        elif kind == "BLOB":
            change = "x'00'"
        else:
            change = f"coalesce({name}, 6) + 1" if column.name not in FLAGS else f"1 - {name}"
        rowid = "(boot, seq)" if table is tables.batches else "(boot, seq, pos)"
        return connection.exec_driver_sql(
            f'UPDATE "{table.name}" SET {name} = {change} WHERE {rowid} = '
            f'(SELECT {rowid[1:-1]} FROM "{table.name}" ORDER BY 1, 2 LIMIT 1)'
        ).rowcount

    assert sqlite_db.write(plant), f"the example has no row in {table.name}"
    with sqlite_db.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) != []


def test_a_changed_digest_is_found_by_the_batch_after_it_and_a_lost_key_by_its_rows(sqlite_db: Database) -> None:
    life = Life()
    for batch in (life.announce(), life.period({ALICE: (1, 0)}, opens=True), life.period({ALICE: (1, 0)})):
        assert accept(sqlite_db, life.send(batch), NOW).status is Status.ACCEPTED

    def plant(connection) -> None:
        connection.exec_driver_sql("DROP TRIGGER batches_no_update")
        connection.exec_driver_sql("UPDATE batches SET digest = x'00' WHERE seq = 2")

    sqlite_db.write(plant)
    with sqlite_db.read() as connection:
        (found,) = fact_audit.fact_breaches(connection)
    assert "seq 3: names" in found
    sqlite_db.write(lambda connection: connection.exec_driver_sql("DELETE FROM batches WHERE seq = 3"))
    with sqlite_db.read() as connection:
        assert any("pool_periods has rows of boot 1, seq 3" in line for line in fact_audit.fact_breaches(connection))


FLAGS = {"has_standing", "paying"}
REPLACED = {
    "kind": "sliding",
    "outcome": "failed",
    "labels": '[["a","c"]]',
    "buckets": "[[3,2],[9,2]]",
}
"""Words and lists are replaced by others that can be read."""


def filled(db: Database, days: int) -> list[Life]:
    """Two engines that reported once on each day, and one that ran on the first day only."""
    lives = [Life(engine="e1"), Life(engine="e2"), Life(engine="short")]
    for day in range(days):
        for life in lives[: 2 if day else 3]:
            life.now_us = T0 + day * DAY
            opens = not day
            batch = life.period(
                {ALICE: (5, 2), BOB: (1, 0)}, standing=True, opens=opens, admits=[f"r{day}"], ends=[f"r{day}"]
            )
            assert accept(db, life.send(batch), life.now_us).status is Status.ACCEPTED
    return lives


def orphans(db: Database) -> dict[str, int]:
    """Rows of every large table whose batch is not there."""
    with db.read() as connection:
        return {
            table.name: count
            for table in (*tables.PARTITIONED, tables.lost_periods)
            if (
                count := connection.execute(
                    text(
                        f"SELECT count(*) FROM {table.name} t WHERE NOT EXISTS "
                        "(SELECT 1 FROM batches b WHERE b.boot = t.boot AND b.seq = t.seq)"
                    )
                ).scalar_one()
            )
        }


def test_retention_deletes_whole_days_and_leaves_no_orphan(db: Database) -> None:
    db.retention_days = 2
    filled(db, 6)
    now = T0 + 5 * DAY + 100
    assert retention.delete_old_facts(db, now) == 7
    with db.read() as connection:
        days = connection.execute(text("SELECT DISTINCT day FROM batches ORDER BY day")).scalars().all()
        assert days == [T0 // DAY + day for day in (3, 4, 5)]
        assert {boot.engine for boot in fact_reads.boots_of(connection)} == {"e1", "e2"}
        opens = connection.execute(text("SELECT count(*) FROM pool_opens")).scalar_one()
    assert orphans(db) == {}
    assert opens == 2, "a pool opened before the retention still runs; that of the ended boot is gone"
    assert retention.delete_old_facts(db, now) == 0


def test_what_retention_left_is_whole_and_the_engine_goes_on(db: Database) -> None:
    db.retention_days = 2
    lives = filled(db, 4)
    retention.delete_old_facts(db, T0 + 3 * DAY)
    lives[0].now_us = T0 + 3 * DAY + 60_000_000
    assert accept(db, lives[0].send(lives[0].period({})), lives[0].now_us).missing_before == 0
    with db.read() as connection:
        for boot in fact_reads.boots_of(connection):
            for batch in fact_reads.stored_batches(connection, boot):
                assert wire.digest(batch.batch, batch.prev) == batch.kept_digest


def test_retention_drops_partitions_on_postgresql(postgres_url: str) -> None:
    from ledger.store.database import connect  # noqa: PLC0415 - beside its only use

    db = connect(postgres_url, retention_days=1)
    filled(db, 4)
    retention.delete_old_facts(db, T0 + 3 * DAY)
    with db.read() as connection:
        days = set(
            connection.execute(
                text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'session_periods'::regclass")
            ).scalars()
        )
    db.close()
    assert days == {f"session_periods_d{T0 // DAY + day}" for day in (2, 3)}


def test_deletion_is_bounded_on_sqlite(sqlite_db: Database, monkeypatch) -> None:
    monkeypatch.setattr(limits, "DELETE_ROWS_MAX", 30)
    sqlite_db.retention_days = 1
    life = Life()
    for number in range(20):
        batch = life.period({ALICE: (1, 1), BOB: (1, 0)}, admits=[f"r{number}"], ends=[f"r{number}"])
        assert accept(sqlite_db, life.send(batch), T0).status is Status.ACCEPTED
    transactions = []
    whole = sqlite_db.write

    def counted(work):
        transactions.append(work)
        return whole(work)

    monkeypatch.setattr(sqlite_db, "write", counted)
    assert retention.delete_old_facts(sqlite_db, T0 + 9 * DAY) == 20
    assert len(transactions) > 7, "twenty batches of nine rows do not fit into a few times thirty rows"
    assert orphans(sqlite_db) == {}


def test_old_quarantine_goes_with_the_facts(db: Database) -> None:
    db.retention_days = 2
    accept(db, b"{", T0)
    accept(db, b"[", T0 + 3 * DAY)
    retention.delete_old_facts(db, T0 + 4 * DAY)
    with db.read() as connection:
        assert [entry.received_us for entry in quarantine.entries(connection)] == [T0 + 3 * DAY]
        assert quarantine.counts(connection) == (
            (T0 // DAY, Reason.NOT_JSON, 1),
            (T0 // DAY + 3, Reason.NOT_JSON, 1),
        )
