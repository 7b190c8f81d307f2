"""Receipt: a batch counts once, whole, in its place, or is refused by name and kept. On both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batches import ALICE, BOB, T0, UNKNOWN, Life, lawful, pool_open
from sqlalchemy import func, select, text

from ledger import limits, wire
from ledger.core.records import Dimensions, Origin, PoolClose
from ledger.errors import UsageError
from ledger.ingest import Outcome, Status, accept, accept_several, retry
from ledger.refusals import Note, Reason
from ledger.store import fact_audit, fact_reads, quarantine, tables
from ledger.store.lost import lost_requests

if TYPE_CHECKING:
    from ledger.store.database import Connection, Database

MINUTE = 60_000_000
NOW = T0 + 30 * MINUTE


def rows(db: Database) -> dict[str, int]:
    with db.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
            if table in (*tables.APPEND_ONLY, tables.quarantine)
        }


def counted(db: Database) -> dict[str, int]:
    with db.read() as connection:
        found: dict[str, int] = {}
        for _, reason, count in quarantine.counts(connection):
            found[reason] = found.get(reason, 0) + count
        return found


def refused(outcome: Outcome) -> str:
    assert outcome.status is Status.REFUSED
    assert outcome.refusal is not None
    return outcome.refusal.reason


def started(db: Database, **life_of) -> Life:
    """An engine whose announcement and first period are in the ledger."""
    life = Life(**life_of)
    for batch in (life.announce(), life.period({ALICE: (400, 10)}, standing=True, opens=True, admits=["r1", "r2"])):
        assert accept(db, life.send(batch), NOW).status is Status.ACCEPTED
    return life


def third_batch(connection: Connection) -> fact_reads.StoredBatch:
    (boot,) = fact_reads.boots_of(connection, "engine-a")
    (stored,) = fact_reads.stored_batches(connection, boot, first_seq=3, last_seq=3)
    return stored


def test_a_batch_is_accepted_and_comes_back_as_it_was(db: Database) -> None:
    life = started(db)
    batch = life.period({BOB: (5, 1), ALICE: (1, 0)}, quiet={UNKNOWN: (0, 2)}, standing=True, ends=["r1"], closes=True)
    raw = life.send(batch)
    assert accept(db, raw, NOW) == Outcome(status=Status.ACCEPTED, batch=batch)
    with db.read() as connection:
        stored = third_batch(connection)
    assert stored.batch == batch
    assert wire.encode(stored.batch, stored.prev) == raw
    assert (stored.received_us, stored.digest, stored.kept_digest) == (NOW, wire.digest_of(raw), wire.digest_of(raw))


def test_a_repeat_changes_nothing_and_is_a_success(db: Database) -> None:
    life = started(db)
    raw = life.send(life.period({ALICE: (1, 1)}))
    assert accept(db, raw, NOW).status is Status.ACCEPTED
    before, counts = rows(db), counted(db)
    for _ in range(3):
        assert accept(db, raw, NOW + MINUTE) == Outcome(status=Status.DUPLICATE)
    assert (rows(db), counted(db)) == (before, counts)


def test_another_batch_under_the_same_key_is_refused_and_kept(db: Database) -> None:
    life = started(db)
    prev, at = life.prev, life.now_us
    first = life.send(life.period({ALICE: (1, 1)}))
    life.seq, life.prev, life.now_us = life.seq - 1, prev, at
    other = life.send(life.period({ALICE: (2, 1)}))
    assert accept(db, first, NOW).status is Status.ACCEPTED
    before = rows(db)
    assert refused(accept(db, other, NOW)) == Reason.KEY_REUSED
    assert rows(db) == {**before, "quarantine": 1}
    assert counted(db) == {Reason.KEY_REUSED: 1}
    assert accept(db, first, NOW).status is Status.DUPLICATE


def test_a_refused_batch_leaves_nothing_but_a_count_and_its_bytes(db: Database) -> None:
    before = rows(db)
    raw = wire.encode(replace(lawful(), sessions=()), b"\x01" * 32)
    for _ in range(2):
        assert refused(accept(db, raw, NOW)) == Reason.SESSION_SUM
    assert rows(db) == {**before, "quarantine": 1}
    assert counted(db) == {Reason.SESSION_SUM: 1}, "the same bytes count once"
    with db.read() as connection:
        (entry,) = quarantine.entries(connection)
        assert (entry.engine, entry.boot_id, entry.seq) == ("engine-a", "boot-1", 2)
        assert (entry.reason, entry.size_bytes, entry.received_us) == (Reason.SESSION_SUM, len(raw), NOW)
        assert quarantine.entry(connection, entry.id) == (entry, raw)
        assert quarantine.entry(connection, entry.id + 1) is None


def test_bytes_that_are_no_batch_are_refused(db: Database) -> None:
    for raw in (b"", b"\xff", b"{}", b'{"kvledger":1,"batch":{"source":{"engine":"\\u0000"}}}'):
        refused(accept(db, raw, NOW))
    assert rows(db)["quarantine"] == 4
    assert refused(accept(db, b" " * (limits.BATCH_BYTES_MAX + 1), NOW)) == Reason.TOO_LARGE
    with db.read() as connection:
        assert quarantine.entries(connection)[-1].size_bytes == 0, "what is too large is not kept"


# --- time ------------------------------------------------------------------------------------------------


def test_a_batch_from_the_future_is_refused_and_one_slightly_ahead_is_counted(db: Database) -> None:
    life = Life()
    batch = life.announce()
    raw = life.send(batch)
    assert refused(accept(db, raw, T0 - limits.AHEAD_US_MAX - 1)) == Reason.FROM_THE_FUTURE
    assert accept(db, raw, T0 - limits.AHEAD_US_MAX) == Outcome(status=Status.ACCEPTED, ahead=True, batch=batch)
    assert accept(db, life.send(life.period({})), NOW).ahead is False
    with db.read() as connection:
        ahead = connection.execute(select(tables.batches.c.seq).where(tables.batches.c.ahead == 1)).scalars().all()
    assert ahead == [1]


def test_a_batch_older_than_the_retention_is_refused(db: Database) -> None:
    life = Life()
    raw = life.send(life.announce())
    kept_us = db.retention_days * limits.DAY_US
    assert refused(accept(db, raw, T0 + kept_us + 1)) == Reason.TOO_OLD
    assert accept(db, raw, T0 + kept_us).status is Status.ACCEPTED


def test_time_within_a_boot_runs_forward(db: Database) -> None:
    life = started(db)
    life.now_us -= 1
    assert refused(accept(db, life.send(life.period({}, length_us=1)), NOW)) == Reason.TIME_REVERSED


# --- order -----------------------------------------------------------------------------------------------


def test_a_gap_is_counted_and_a_late_batch_fills_it(db: Database) -> None:
    life = started(db)
    late = [life.send(life.period({})) for _ in range(2)]
    assert accept(db, life.send(life.period({})), NOW).missing_before == 2
    with db.read() as connection:
        assert [boot.missing for boot in fact_reads.boots_of(connection)] == [2]
    assert [replace(accept(db, raw, NOW), batch=None) for raw in reversed(late)] == [
        Outcome(status=Status.ACCEPTED)
    ] * 2
    with db.read() as connection:
        assert [boot.missing for boot in fact_reads.boots_of(connection)] == [0]


def test_a_boot_whose_beginning_is_lost_is_accepted_with_its_gap(db: Database) -> None:
    life = Life()
    for _ in range(4):
        life.send(life.announce())
    assert accept(db, life.send(life.announce()), NOW).missing_before == 4


def test_a_batch_that_names_another_one_before_it_is_refused(db: Database) -> None:
    life = started(db)
    life.prev = b"\x07" * 32
    assert refused(accept(db, life.send(life.period({})), NOW)) == Reason.BROKEN_CHAIN


def test_a_late_batch_that_its_successor_does_not_name_is_refused(db: Database) -> None:
    life = started(db)
    prev, seq, at = life.prev, life.seq, life.now_us
    true = life.send(life.period({}))
    assert accept(db, life.send(life.period({})), NOW).status is Status.ACCEPTED
    life.prev, life.seq, life.now_us = prev, seq, at
    assert refused(accept(db, life.send(life.period({ALICE: (1, 0)})), NOW)) == Reason.BROKEN_CHAIN
    assert accept(db, true, NOW).status is Status.ACCEPTED


def test_only_the_first_batch_of_a_boot_has_none_before_it(db: Database) -> None:
    life = Life(prev=b"\x07" * 32)
    assert refused(accept(db, life.send(life.announce()), NOW)) == Reason.BROKEN_CHAIN
    life.prev = b""
    assert refused(accept(db, life.send(life.announce()), NOW)) == Reason.BROKEN_CHAIN


def test_a_boot_keeps_its_times(db: Database) -> None:
    life = started(db)
    life.start_us += 1
    assert refused(accept(db, life.send(life.period({})), NOW)) == Reason.OTHER_BOOT


def test_a_ledger_is_simulated_or_live_from_its_first_batch_on(db: Database) -> None:
    started(db)
    live = Life(engine="engine-b", origin=Origin.LIVE)
    outcome = accept(db, live.send(live.announce()), NOW)
    assert refused(outcome) == Reason.OTHER_ORIGIN
    assert outcome.refusal is not None
    assert "use another database" in outcome.refusal.detail
    assert rows(db)["boots"] == 1


def test_one_pool_at_a_time_carries_money_across_batches(db: Database) -> None:
    life = started(db)
    second = replace(life.announce(), opens=(pool_open(life.now_us, "other"),))
    assert refused(accept(db, wire.encode(second, life.prev), NOW)) == Reason.TWO_PAYING
    closed = (PoolClose(pool="gpu", at_us=life.now_us, reason="sleep"),)
    assert accept(db, wire.encode(replace(second, closes=closed), life.prev), NOW).status is Status.ACCEPTED


# --- two boots at once -----------------------------------------------------------------------------------


def lost(db: Database) -> set[tuple[str, int]]:
    with db.read() as connection:
        found = connection.execute(
            text("SELECT o.boot_id, l.seq FROM lost_periods l JOIN boots o ON o.id = l.boot")
        ).all()
    return {(row[0], row[1]) for row in found}


def test_the_boot_first_accepted_later_loses_each_overlapping_period_whole(db: Database) -> None:
    first, second = started(db), Life(boot_id="boot-2", start_us=T0 + 10_000_000)
    assert accept(db, second.send(second.announce()), NOW).lost is False, "an announcement claims no time"
    assert accept(db, second.send(second.period({}, length_us=5_000_000, opens=True)), NOW).lost is True
    assert accept(db, second.send(second.period({})), NOW).lost is False
    assert lost(db) == {("boot-2", 2)}
    assert accept(db, first.send(first.period({})), NOW).lost is False
    assert lost(db) == {("boot-2", 2), ("boot-2", 3)}, "the earlier boot takes its time back, though it came later"


def test_boots_of_other_engines_and_periods_that_only_touch_do_not_overlap(db: Database) -> None:
    first = started(db)
    started(db, engine="engine-b")
    after = Life(boot_id="boot-2", start_us=first.now_us)
    accept(db, after.send(after.announce()), NOW)
    assert accept(db, after.send(after.period({}, opens=True)), NOW).lost is False
    assert lost(db) == set()


# --- requests --------------------------------------------------------------------------------------------


def test_a_request_without_an_answer_is_lost_once_its_boot_has_ended(db: Database) -> None:
    life = started(db)
    accept(db, life.send(life.period({}, ends=["r1"])), NOW)
    heard = life.now_us

    def names(now_us: int, engine: str | None = None) -> list[str]:
        with db.read() as connection:
            return [found.admission.request for found in lost_requests(connection, now_us, engine)]

    assert names(heard + limits.SILENCE_US_MAX - 1) == []
    assert names(heard + limits.SILENCE_US_MAX) == ["r2"]
    assert names(heard + limits.SILENCE_US_MAX, "engine-b") == []
    second = Life(boot_id="boot-2", start_us=heard)
    accept(db, second.send(second.announce()), NOW)
    assert names(heard) == ["r2"], "a new boot ends the one before"
    late = life.send(life.period({}, ends=["r2"]))
    assert accept(db, late, NOW).status is Status.ACCEPTED
    assert names(heard + limits.SILENCE_US_MAX) == [], "a late record replaces it"


def test_requests_that_a_boot_handed_over_with_its_clock_are_not_lost(db: Database) -> None:
    life = started(db)
    closing = replace(life.period({}), closes=(PoolClose(pool="gpu", at_us=life.now_us, reason="clock"),))
    assert accept(db, life.send(closing), NOW).status is Status.ACCEPTED
    second = Life(boot_id="boot-2", start_us=life.now_us)
    accept(db, second.send(second.announce()), NOW)
    taken_over = second.period({}, opens=True, standing=True, admits=["r1"])
    assert accept(db, second.send(taken_over), NOW).status is Status.ACCEPTED
    with db.read() as connection:
        lost = lost_requests(connection, second.now_us)
    assert [(found.boot_id, found.admission.request) for found in lost] == [("boot-1", "r2")]


# --- quarantine ------------------------------------------------------------------------------------------


def test_an_unknown_major_version_waits_in_quarantine_and_is_no_failure_of_its_sender(db: Database) -> None:
    outcome = accept(db, b'{"batch":{},"kvledger":2}', NOW)
    assert outcome.status is Status.QUARANTINED
    assert counted(db) == {Reason.UNKNOWN_VERSION: 1}
    with db.read() as connection:
        (entry,) = quarantine.entries(connection)
    assert retry(db, entry.id, NOW).status is Status.QUARANTINED
    assert rows(db)["quarantine"] == 1


def test_a_batch_is_taken_out_of_quarantine_once_it_can_be_accepted(db: Database) -> None:
    life = Life()
    raw = life.send(life.announce())
    assert refused(accept(db, raw, T0 - 600 * MINUTE)) == Reason.FROM_THE_FUTURE
    with db.read() as connection:
        (entry,) = quarantine.entries(connection)
    assert retry(db, entry.id, T0 - 500 * MINUTE).status is Status.REFUSED
    assert rows(db)["quarantine"] == 1
    assert retry(db, entry.id, NOW).status is Status.ACCEPTED
    assert (rows(db)["quarantine"], rows(db)["batches"]) == (0, 1)
    with pytest.raises(UsageError, match="quarantine list"):
        retry(db, entry.id, NOW)


def test_quarantine_is_bounded_and_drops_the_oldest(db: Database, monkeypatch) -> None:
    monkeypatch.setattr(limits, "QUARANTINE_ROWS_MAX", 3)
    for number in range(5):
        accept(db, b"x" * (number + 1), NOW)
    with db.read() as connection:
        assert [entry.size_bytes for entry in quarantine.entries(connection, most=10)] == [3, 4, 5]
    assert counted(db) == {Reason.NOT_JSON: 5, Note.QUARANTINE_DROPPED: 2}
    monkeypatch.setattr(limits, "QUARANTINE_BYTES_MAX", 10)
    accept(db, b"y" * 6, NOW)
    with db.read() as connection:
        assert [entry.size_bytes for entry in quarantine.entries(connection)] == [6]


# --- many ------------------------------------------------------------------------------------------------


def test_ten_thousand_sessions_in_one_batch_all_land(db: Database) -> None:
    """The whole kind of E2 of the field reports: a flush that takes the first hundred keys and drops the rest."""
    life = started(db)
    held = {Dimensions(tenant=f"t{i % 7}", session=f"s{i}"): (0, 0) for i in range(10_000)}
    batch = life.period(held)
    assert accept(db, life.send(batch), NOW).status is Status.ACCEPTED
    with db.read() as connection:
        stored = third_batch(connection)
    assert stored.batch == batch


def test_a_delivery_of_several_batches_is_one_transaction_with_an_answer_for_each(db: Database) -> None:
    life, other = Life(), Life(engine="engine-b")
    first, second = life.send(life.announce()), life.send(life.period({ALICE: (2, 1), BOB: (1, 0)}, opens=True))
    third = life.send(life.period({BOB: (1, 0)}, quiet={ALICE: (0, 1)}))
    delivery = [first, b"{", other.send(other.announce()), second, first, third]
    answers = accept_several(db, delivery, NOW)
    assert [answer.status for answer in answers] == [
        Status.ACCEPTED,
        Status.REFUSED,
        Status.ACCEPTED,
        Status.ACCEPTED,
        Status.DUPLICATE,
        Status.ACCEPTED,
    ]
    again = accept_several(db, delivery, NOW)
    assert {answer.status for answer in again} == {Status.DUPLICATE, Status.REFUSED}
    with db.read() as connection:
        assert list(fact_audit.fact_breaches(connection)) == []
        assert [boot.batches for boot in fact_reads.boots_of(connection)] == [3, 1]
    assert counted(db) == {Reason.NOT_JSON: 1}


def test_deliveries_have_a_bound(db: Database) -> None:
    with pytest.raises(AssertionError, match="divides"):
        accept_several(db, [b""] * (limits.BATCHES_AT_ONCE_MAX + 1), NOW)
