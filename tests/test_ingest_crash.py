"""Killed at every step of receipt, on both databases: nothing counts twice, nothing acknowledged is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from batches import ALICE, BOB, T0, Life
from faults import run_killed_at

from ledger import wire
from ledger.ingest import Status, accept, accept_several
from ledger.refusals import Reason
from ledger.store import fact_audit, fact_reads, quarantine
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.store.database import Database

NOW = T0 + 600_000_000


def deliveries(number: int) -> list[bytes]:
    """What an engine named by ``number`` delivers: two boots that overlap, and a batch that is refused."""
    first = Life(engine=f"engine-{number}")
    second = Life(engine=f"engine-{number}", boot_id="boot-2", start_us=T0 + 9_000_000)
    held = {ALICE: (3, 1), BOB: (1, 0)}
    made = [
        first.send(first.announce()),
        first.send(first.period(held, standing=True, opens=True, admits=["r"], ends=["r"])),
        second.send(second.period(held, length_us=6_000_000, opens=True)),
    ]
    refused = first.period({})
    made.append(wire.encode(refused, b"\x01" * 32))
    return made


def one_by_one(db: Database, sent: Sequence[bytes], acknowledge: Callable[[str], None]) -> None:
    for place, raw in enumerate(sent):
        accept(db, raw, NOW)
        acknowledge(str(place))


def together(db: Database, sent: Sequence[bytes], acknowledge: Callable[[str], None]) -> None:
    accept_several(db, sent, NOW)
    for place in range(len(sent)):
        acknowledge(str(place))


def crash_at_every(stride: int, store_url: str, deliver: Callable[..., None]) -> int:
    point, killed, refusals = 1 - stride, True, 0
    while killed:
        point += stride
        sent = deliveries(point)

        def work(db, acknowledge, sent=sent) -> None:
            deliver(db, sent, acknowledge)

        killed, acknowledged = run_killed_at(point, store_url, work)
        db = connect(store_url, durable=False)
        with db.read() as connection:
            boots = fact_reads.boots_of(connection, f"engine-{point}")
            there = {
                (batch.batch.boot.boot_id, batch.batch.seq)
                for boot in boots
                for batch in fact_reads.stored_batches(connection, boot)
            }
            kept = [entry for entry in quarantine.entries(connection) if entry.engine == f"engine-{point}"]
        keys = [("boot-1", 1), ("boot-1", 2), ("boot-2", 1)]
        told = [int(place) for place in acknowledged]
        assert {keys[place] for place in told if place < 3} <= there, f"acknowledged and lost, killed at step {point}"
        assert len(kept) >= (3 in told)
        answers = [accept(db, raw, NOW).status for raw in sent]
        assert answers[3] is Status.REFUSED
        assert all(
            answer is (Status.DUPLICATE if key in there else Status.ACCEPTED)
            for answer, key in zip(answers, keys, strict=False)
        ), f"killed at step {point}"
        refusals += 1
        with db.read() as connection:
            boots = fact_reads.boots_of(connection, f"engine-{point}")
            assert [boot.batches for boot in boots] == [2, 1]
            lost = connection.exec_driver_sql(
                f"SELECT count(*) FROM lost_periods WHERE boot = {boots[1].number}"
            ).scalar_one()
            counts = {reason: count for _, reason, count in quarantine.counts(connection)}
        assert lost == 1
        assert counts == {Reason.BROKEN_CHAIN: refusals}, f"killed at step {point}"
        db.close()
    db = connect(store_url, durable=False)
    with db.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) == []
    db.close()
    print(f"killed at {(point - 1) // stride} steps, before and after statements, copies and commits")
    return point


ways = pytest.mark.parametrize(("deliver", "steps"), [(one_by_one, 60), (together, 30)])


@ways
def test_a_crash_at_some_steps_loses_nothing_acknowledged_and_counts_nothing_twice(
    store_url: str, deliver: Callable[..., None], steps: int
) -> None:
    assert crash_at_every(9, store_url, deliver) > steps


@pytest.mark.slow
@ways
def test_a_crash_at_any_step_loses_nothing_acknowledged_and_counts_nothing_twice(
    store_url: str, deliver: Callable[..., None], steps: int
) -> None:
    assert crash_at_every(1, store_url, deliver) > steps
