"""A GPU that an agent sees is paid for: a stay by its sights, priced by a rule, vacant where no engine is on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batches import T0, Life
from booking import HOUR, MINUTE, USD, A, book, deliver, give_asset, open_ledger, stretch
from sampled import GPUS, AgentLife, lawful_samples

from ledger import wire
from ledger.audit import audit
from ledger.core.records import PERIOD_US, Shard
from ledger.core.settlement import Basis
from ledger.ingest import Status, accept
from ledger.limits import DAY_US
from ledger.pricebook import Price, Sight
from ledger.settle import booked_statement, first_us, provisional
from ledger.store import prices
from ledger.store.sample_sights import agent_sights
from ledger.store.terms import read_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.samples import Gpu
    from ledger.store.database import Database

ONE, TWO = GPUS


def watch(db: Database, life: AgentLife, until_us: int, gpus: Sequence[Gpu] | None = None) -> None:
    """Periods up to ``until_us``; the first lists ``gpus``, and so does the first of each day."""
    first = True
    while life.now_us < until_us:
        batch = life.period(gpus=gpus if first or life.now_us % DAY_US == 0 else None)
        first = False
        assert accept(db, life.send(batch), life.now_us).status is Status.ACCEPTED


def sights(db: Database, start_us: int = T0, end_us: int = T0 + HOUR) -> list[tuple[str, int, int]]:
    with db.read() as connection:
        return [
            (s.gpu_uuid, (s.start_us - T0) // MINUTE, (s.end_us - T0) // MINUTE)
            for s in agent_sights(connection, start_us, end_us)
        ]


def statement(db: Database) -> dict[str, int]:
    with db.read() as connection:
        lines = booked_statement(connection, read_terms(connection), "2026-11", Basis.CAPACITY).lines
    return {line.account if line.account != "tenant" else line.tenant: line.amount_nanos for line in lines}


def rule(db: Database, nanos: int = 2 * USD) -> None:
    price = Price(model="A100", nanos_per_hour=nanos, valid_from_us=T0)
    db.write(lambda connection: prices.add_price(connection, price, currency="USD", now_us=T0))


def test_a_gpu_is_seen_from_the_list_that_has_it_to_the_one_that_has_it_not(db: Database) -> None:
    life = AgentLife()
    watch(db, life, T0 + 10 * MINUTE, [ONE])
    watch(db, life, T0 + 20 * MINUTE, [ONE, TWO])
    watch(db, life, T0 + 30 * MINUTE, [TWO])
    watch(db, life, T0 + 40 * MINUTE, [])
    watch(db, life, T0 + 50 * MINUTE, [ONE])
    assert sights(db) == [("GPU-1", 0, 20), ("GPU-2", 10, 30), ("GPU-1", 40, 50)]
    assert sights(db, T0 + 5 * MINUTE, T0 + 15 * MINUTE) == [("GPU-1", 5, 15), ("GPU-2", 10, 15)]
    assert sights(db, T0 + 30 * MINUTE, T0 + 40 * MINUTE) == []


def test_a_silence_of_more_than_15_minutes_parts_two_sights(db: Database) -> None:
    life = AgentLife()
    watch(db, life, T0 + 5 * MINUTE, [ONE])
    life.now_us += 10 * MINUTE
    watch(db, life, T0 + 20 * MINUTE, [ONE])
    life.now_us += 16 * MINUTE
    watch(db, life, T0 + 40 * MINUTE, [ONE])
    assert sights(db) == [("GPU-1", 0, 20), ("GPU-1", 36, 40)]


def test_a_day_has_a_list_of_its_own_so_that_no_other_day_need_be_read(db: Database) -> None:
    life = AgentLife(start_us=T0 + DAY_US - 5 * MINUTE)
    watch(db, life, T0 + DAY_US + 5 * MINUTE, [ONE])
    with db.read() as connection:
        found = agent_sights(connection, T0 + DAY_US, T0 + 2 * DAY_US)
    assert found == (
        Sight(engine="", gpu_uuid="GPU-1", gpu_model="A100", start_us=T0 + DAY_US, end_us=T0 + DAY_US + 5 * MINUTE),
    )


def test_an_instance_is_no_gpu_to_be_paid_for(db: Database) -> None:
    assert accept(db, wire.encode(lawful_samples()), T0 + HOUR).status is Status.ACCEPTED
    assert {uuid for uuid, _, _ in sights(db)} == {"GPU-1", "GPU-2"}


def test_what_an_agent_sees_and_no_engine_uses_is_vacant_at_the_price_of_its_model(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    rule(db)
    agent, engine = AgentLife(), Life()
    watch(db, agent, T0 + HOUR, [ONE, TWO])
    deliver(db, engine, [engine.announce()])
    deliver(db, engine, stretch(engine, T0 + HOUR, {A: (500, 0)}, opens=True, shards=[Shard(gpu_uuid="GPU-1")]))
    book(db, T0 + HOUR)
    assert statement(db) == {"A": 1 * USD, "idle": 1 * USD, "vacant": 2 * USD}
    assert audit(db) == ()


def test_without_a_rule_its_time_is_unpriced_and_never_free(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    watch(db, AgentLife(), T0 + HOUR, [ONE])
    book(db, T0 + HOUR)
    with db.read() as connection:
        (line,) = booked_statement(connection, read_terms(connection), "2026-11", Basis.CAPACITY).lines
    assert (line.account, line.amount_nanos, line.asset_us) == ("unpriced", 0, HOUR)


def test_the_ledger_begins_with_the_first_gpu_that_is_seen(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    rule(db)
    with db.read() as connection:
        assert first_us(connection) is None
    watch(db, AgentLife(start_us=T0 + 30 * MINUTE), T0 + HOUR, [ONE])
    with db.read() as connection:
        assert first_us(connection) == T0 + 30 * MINUTE
    book(db, T0 + HOUR)
    assert statement(db) == {"vacant": USD}


def test_an_agent_that_delivers_late_revises_what_was_settled(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    rule(db)
    give_asset(db, "other", None, USD, to_us=T0 + HOUR)
    assert book(db, T0 + HOUR).booked == 1
    assert statement(db) == {"vacant": USD}
    watch(db, AgentLife(), T0 + HOUR, [ONE])
    assert book(db, T0 + HOUR).booked == 1
    assert statement(db) == {"vacant": 3 * USD}
    assert book(db, T0 + HOUR).booked == book(db, T0 + HOUR).revised == 0
    assert audit(db) == ()


def test_two_agents_and_a_registration_of_one_gpu_are_one_gpu(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    rule(db)
    watch(db, AgentLife(), T0 + HOUR, [ONE, TWO])
    watch(db, AgentLife(source_id="exporter"), T0 + HOUR, [ONE])
    book(db, T0 + HOUR)
    assert statement(db) == {"vacant": 4 * USD}


def test_the_open_hour_has_what_agents_see_too(sqlite_db: Database) -> None:
    open_ledger(db := sqlite_db)
    rule(db)
    end_us = T0 + 30 * MINUTE
    watch(db, AgentLife(), end_us, [ONE])
    (part,) = provisional(db, now_us=end_us + PERIOD_US)
    amounts = [each.amount_nanos for made in part.settlements for basis, each in made.lines() if basis == "capacity"]
    assert sum(amounts) == USD
