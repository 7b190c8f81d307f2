"""Many writers at once, on both databases: no deadlock loses anything, and nothing counts twice."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from sqlalchemy import text

from ledger.core.records import Dimensions
from ledger.errors import StoreError
from ledger.ingest import Status, accept, accept_several
from ledger.store import fact_audit, fact_reads
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = T0 + 600_000_000
WRITERS = 4


def at_once(works: list[Callable[[], None]]) -> None:
    """Run all of ``works``, each in a thread that waits for the others before it starts."""
    gate, failures = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        gate.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def chain(engine: str, batches: int, seed: int) -> list[bytes]:
    """Batches with many new sessions each, common to all engines, named in an order of their own."""
    order, life = random.Random(seed), Life(engine=engine)
    sent = [life.send(life.announce())]
    for number in range(batches):
        sessions = [Dimensions(tenant=f"t{i % 3}", session=f"s{number}-{i}") for i in range(60)]
        order.shuffle(sessions)
        sent.append(life.send(life.period(dict.fromkeys(sessions, (1, 0)), opens=number == 0)))
    return sent


def test_several_writers_of_one_engine_count_each_batch_once(store_url: str) -> None:
    """Replicas that get the same deliveries, in different orders."""
    sent = chain("engine-a", 8, seed=1)
    databases = [connect(store_url, durable=False) for _ in range(WRITERS)]
    answers: list[Status] = []

    def deliver(number: int) -> None:
        mine = list(sent)
        random.Random(number).shuffle(mine)
        answers.extend(accept(databases[number], raw, NOW).status for raw in mine)

    at_once([lambda number=number: deliver(number) for number in range(WRITERS)])
    assert answers.count(Status.ACCEPTED) == len(sent)
    assert answers.count(Status.DUPLICATE) == len(sent) * (WRITERS - 1)
    check(store_url, {"engine-a": len(sent)})
    for db in databases:
        db.close()


def test_writers_of_several_engines_that_meet_the_same_new_sessions_do_not_deadlock(store_url: str) -> None:
    """The whole kind of E1 of the field reports: increments of a flush that met a deadlock were gone for good."""
    databases = [connect(store_url, durable=False) for _ in range(WRITERS)]

    def deliver(number: int) -> None:
        for raw in chain(f"engine-{number}", 6, seed=number):
            assert accept(databases[number], raw, NOW).status is Status.ACCEPTED

    at_once([lambda number=number: deliver(number) for number in range(WRITERS)])
    check(store_url, {f"engine-{number}": 7 for number in range(WRITERS)})
    for db in databases:
        db.close()


def test_deliveries_of_several_engines_in_opposite_orders_do_not_deadlock(store_url: str) -> None:
    databases = [connect(store_url, durable=False) for _ in range(WRITERS)]
    chains = [chain(f"engine-{number}", 5, seed=number) for number in range(WRITERS)]

    def deliver(number: int) -> None:
        for place in range(6):
            turn = [*range(number, WRITERS), *range(number)]
            accept_several(databases[number], [chains[engine][place] for engine in turn], NOW)

    at_once([lambda number=number: deliver(number) for number in range(WRITERS)])
    check(store_url, {f"engine-{number}": 6 for number in range(WRITERS)})
    for db in databases:
        db.close()


def check(store_url: str, expected: dict[str, int]) -> None:
    db = connect(store_url)
    with db.read() as connection:
        assert {boot.engine: boot.batches for boot in fact_reads.boots_of(connection)} == expected
        assert list(fact_audit.fact_breaches(connection)) == []
    db.close()


def test_an_injected_deadlock_is_tried_again_and_loses_nothing(postgres_url: str) -> None:
    """Two transactions that lock two counts in opposite orders: one of them is killed by the server, and comes back."""
    db, met = connect(postgres_url), threading.Barrier(2)
    attempts = []
    db.write(lambda connection: connection.exec_driver_sql("INSERT INTO ingest_counts VALUES (1, 'a', 0), (1, 'b', 0)"))

    def work(first: str, second: str) -> None:
        tries = []

        def transaction(connection) -> None:
            tries.append(first)
            for reason in (first, second):
                connection.execute(
                    text('UPDATE ingest_counts SET "count" = "count" + 1 WHERE reason = :reason'), {"reason": reason}
                )
                if len(tries) == 1 and reason == first:
                    met.wait()

        db.write(transaction)
        attempts.extend(tries)

    at_once([lambda: work("a", "b"), lambda: work("b", "a")])
    with db.read() as connection:
        counts = connection.exec_driver_sql('SELECT "count" FROM ingest_counts').scalars().all()
    db.close()
    assert counts == [2, 2]
    assert len(attempts) > 2  # once each, and whoever was killed again; it may meet the other one twice


def test_a_lock_that_never_goes_away_is_an_error_that_says_so(sqlite_url: str, monkeypatch) -> None:
    monkeypatch.setattr("ledger.limits.STORE_BUSY_MS", 1)
    monkeypatch.setattr("ledger.limits.STORE_ATTEMPTS_MAX", 3)
    holder, other = connect(sqlite_url), connect(sqlite_url)

    def hold(_connection) -> None:
        tried = []
        with pytest.raises(StoreError, match=r"stayed locked through 3 tries.*run the command again"):
            other.write(lambda _: tried.append(1))
        assert tried == []

    holder.write(hold)
    holder.close()
    other.close()


def test_a_reader_sees_one_snapshot_while_a_writer_goes_on(store_url: str) -> None:
    db, sent = connect(store_url), chain("engine-a", 1, seed=1)
    accept(db, sent[0], NOW)
    with db.read() as connection:
        (before,) = fact_reads.boots_of(connection)
        accept(db, sent[1], NOW)
        assert fact_reads.boots_of(connection) == (before,)
    with db.read() as connection:
        assert [boot.batches for boot in fact_reads.boots_of(connection)] == [2]
    db.close()
