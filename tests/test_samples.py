"""Samples of agents: on the wire, in the store, and counted once. An agent is a source and no engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from batches import T0, Life
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampled import GPUS, AgentLife, arbitrary_samples, device, flat, lawful_samples
from sqlalchemy import text
from test_wire import PREV, canonical, signed

from ledger import audit, fastwire, limits, wire
from ledger.core.records import Origin
from ledger.core.samples import GpuProcess, SampleBatch, Trouble
from ledger.errors import Refusal
from ledger.ingest import Outcome, Status, accept, accept_several, retry
from ledger.refusals import Reason
from ledger.sample_laws import sample_breach
from ledger.store import (
    fact_audit,
    facts,
    fleet,
    inputs,
    quarantine,
    retention,
    sample_reads,
    sample_tables,
    samples,
)

if TYPE_CHECKING:
    from ledger.store.database import Connection, Database

GOLDEN = Path(__file__).parent / "golden" / "samples_v1.json"
NOW = T0 + 3_600_000_000
DAY = limits.DAY_US


def example() -> dict:
    return json.loads(wire.encode(lawful_samples(), PREV))


def refused(found: Outcome | object) -> str:
    refusal = found.refusal if isinstance(found, Outcome) else found
    assert isinstance(refusal, Refusal), found
    return refusal.reason


def stored(db: Database) -> list[SampleBatch]:
    with db.read() as connection:
        return [
            found.batch
            for boot in sample_reads.agent_boots(connection)
            for found in sample_reads.stored_samples(connection, boot)
        ]


# --- the wire -------------------------------------------------------------------------------------------


@given(arbitrary_samples, st.one_of(st.just(b""), st.binary(min_size=32, max_size=32)))
def test_all_samples_come_back_as_they_were_sent(batch, prev) -> None:
    raw = wire.encode(batch, prev)
    decoded = fastwire.decode(raw)
    assert isinstance(decoded, wire.DecodedSamples)
    assert repr(decoded.batch) == repr(batch)
    assert decoded.digest == decoded.kept_digest == wire.digest(batch, prev) == wire.digest_of(raw)
    assert canonical(json.loads(raw)) == raw == signed(json.loads(raw))
    assert b"".join(wire.encode_slices(batch, prev, rows=1)) == raw


def test_the_golden_samples_are_written_and_read_as_they_always_were() -> None:
    raw = GOLDEN.read_bytes()
    assert wire.encode(lawful_samples(), PREV) == raw, "version 1 has changed: old agents would be refused"
    decoded = wire.decode(raw)
    assert isinstance(decoded, wire.DecodedSamples)
    assert decoded.batch == lawful_samples()
    assert wire.peek(raw) == ("agent:h1", "life-1", 1)


@given(arbitrary_samples, st.data())
def test_any_byte_of_samples_that_is_changed_is_noticed(batch, data) -> None:
    raw = wire.encode(batch, PREV)
    position = data.draw(st.integers(0, len(raw) - 1))
    other = data.draw(st.binary(max_size=2).filter(lambda found: found != raw[position : position + 1]))
    assert isinstance(wire.decode(raw[:position] + other + raw[position + 1 :]), Refusal)


def test_a_newer_agent_may_say_more_and_its_digest_still_holds() -> None:
    document = example()
    document["agent"]["samples"][0]["later"] = 5
    decoded = wire.decode(signed(document))
    assert isinstance(decoded, wire.DecodedSamples)
    assert decoded.batch == lawful_samples()
    assert decoded.kept_digest == wire.digest(lawful_samples(), PREV) != decoded.digest


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("samples.0.used_bytes", [3, 2, 4], Reason.BAD_SPREAD),
        ("samples.0.used_bytes", [1, 2], Reason.BAD_SPREAD),
        ("samples.0.used_bytes", 7, Reason.WRONG_TYPE),
        ("samples.0.used_bytes", [1, 2, limits.BLANK_INT64], Reason.SENTINEL),
        ("samples.0.busy_ppm", [0, 0, 1_000_001], Reason.OUT_OF_BOUNDS),
        ("samples.0.used_marks", [], Reason.TOO_MANY),
        ("samples.0.used_marks", [1, 2, 3, 4], Reason.TOO_MANY),
        ("samples.0.readings", 0, Reason.OUT_OF_BOUNDS),
        ("samples.0.ecc_corrected", -1, Reason.NEGATIVE),
        ("samples.0.throttles", [["b", 1], ["a", 1]], Reason.BAD_ORDER),
        ("processes.0.pid", 0, Reason.OUT_OF_BOUNDS),
        ("processes.0.engagement", "rendering", Reason.UNKNOWN_WORD),
        ("health.0.threads", True, Reason.WRONG_TYPE),
        ("source.source_id", "", Reason.BAD_TEXT),
        ("gpus", [{}], Reason.MISSING_FIELD),
        ("troubles.0.count", 1.5, Reason.NOT_AN_INTEGER),
    ],
)
def test_a_fault_in_samples_is_named(place, value, reason) -> None:
    document = example()
    node = document["agent"]
    *path, last = place.split(".")
    for part in path:
        node = node[int(part)] if part.isdecimal() else node[part]
    node[last] = value
    assert refused(wire.decode(signed(document))) == reason


def test_rules_of_samples_are_kept_or_named() -> None:
    batch = lawful_samples()
    assert sample_breach(batch) is None
    stray = GpuProcess(gpu="GPU-7", pid=1, readings=1)
    marked = replace(batch.samples[0], used_marks=(1,))
    throttled = replace(batch.samples[0], throttles=(("idle", 16),))
    for broken, reason in (
        (replace(batch, end_us=batch.start_us), Reason.BAD_PERIOD),
        (replace(batch, end_us=batch.end_us + 1), Reason.BAD_PERIOD),
        (replace(batch, processes=(stray,)), Reason.UNKNOWN_GPU),
        (replace(batch, rests=(replace(batch.rests[0], gpu="GPU-7"),)), Reason.UNKNOWN_GPU),
        (replace(batch, samples=(marked, batch.samples[1])), Reason.BAD_SPREAD),
        (replace(batch, samples=(throttled, batch.samples[1])), Reason.BAD_SPREAD),
        (replace(batch, gpus=(*GPUS, GPUS[0])), Reason.DUPLICATE_ROW),
        (replace(batch, health=batch.health * 2), Reason.DUPLICATE_ROW),
        (replace(batch, troubles=(Trouble(reason="a", count=1),) * 2), Reason.DUPLICATE_ROW),
    ):
        assert refused(sample_breach(broken)) == reason


# --- the store ------------------------------------------------------------------------------------------


def put(db: Database, batch: SampleBatch, prev: bytes = b"") -> None:
    """Store samples without asking whether they keep the rules."""
    facts.ensure_day(db, batch.start_us)
    digest = wire.digest(batch, prev)
    receipt = facts.Receipt(
        digest=digest, prev=prev, kept_digest=digest, received_us=NOW, ahead=False, missing_before=0
    )

    def work(connection: Connection) -> facts.Learned:
        learned = facts.Learned()
        samples.intern(db, connection, [batch], learned)
        boot = samples.add_boot(connection, batch.source.source_id, batch.boot, NOW)
        samples.insert(db, connection, batch, boot=boot, receipt=receipt, learned=learned)
        facts.flush(connection, learned)
        return learned

    facts.remember(db, db.write(work))


@pytest.mark.parametrize(("store", "examples"), [("sqlite_url", 60), ("postgres_url", 8)])
def test_any_samples_come_back_exactly(request, store, examples) -> None:
    from ledger.store.database import connect  # noqa: PLC0415 - beside its only use

    db = connect(request.getfixturevalue(store), durable=False)
    count = [0]

    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(arbitrary_samples)
    def check(batch) -> None:
        count[0] += 1
        boot = replace(batch.boot, boot_id=f"{count[0]}")
        put(db, unique := replace(batch, boot=boot, start_us=T0 + batch.start_us % 2 * DAY), PREV)
        with db.read() as connection:
            last = sample_reads.agent_boots(connection)[-1]
            (found,) = sample_reads.stored_samples(connection, last)
        assert found.batch == unique
        assert wire.digest(found.batch, found.prev) == found.kept_digest

    check()
    db.close()


COVERED = [
    (table, column)
    for table in (sample_tables.agent_batches, sample_tables.gpus, *sample_tables.SAMPLES)
    for column in table.columns
    if column.name not in {"day", "boot", "pos", "source", "received_us", "ahead", "missing_before", "id", "digest"}
]


class _Undone(Exception):  # noqa: N818 - it ends a transaction, nothing is wrong
    pass


def test_a_planted_error_in_samples_is_found(sqlite_db: Database) -> None:
    put(sqlite_db, lawful_samples(), PREV)

    def plant(connection: Connection, table, column) -> None:
        assert list(fact_audit.fact_breaches(connection)) == []
        connection.exec_driver_sql(f"DROP TRIGGER {table.name}_no_update")
        changes = {"TEXT": f"'[[\"{column.name}\",1]]'", "BLOB": "x'00'"}
        change = changes.get(str(column.type.compile()), f"coalesce({column.name}, 6) + 1")
        change = "0" if column.name == "has_gpus" else change
        key = {"gpus": "id", "agent_batches": "seq"}.get(table.name, "pos")
        first = f"(SELECT min({key}) FROM {table.name})"
        connection.exec_driver_sql(f"UPDATE {table.name} SET {column.name} = {change} WHERE {key} = {first}")
        assert list(fact_audit.fact_breaches(connection)), f"{table.name}.{column.name} is not covered"
        raise _Undone

    for table, column in COVERED:
        with pytest.raises(_Undone):
            sqlite_db.write(lambda connection, table=table, column=column: plant(connection, table, column))


# --- receipt --------------------------------------------------------------------------------------------


def test_samples_count_once_in_their_place_or_are_refused_by_name(db: Database) -> None:
    life = AgentLife()
    first, second = life.send(life.period({"GPU-1": {7: 10}}, gpus=GPUS)), life.send(life.period({"GPU-1": {7: 11}}))
    assert accept(db, first, NOW).status is Status.ACCEPTED
    assert accept(db, first, NOW).status is Status.DUPLICATE
    third = life.send(life.period())
    outcome = accept(db, third, NOW)
    assert (outcome.status, outcome.missing_before) == (Status.ACCEPTED, 1)
    assert outcome.samples is not None
    assert accept(db, second, NOW).status is Status.ACCEPTED, "a late one fills the gap"
    assert refused(accept(db, wire.encode(life.period(), b"\x01" * 32), NOW)) == Reason.BROKEN_CHAIN
    other = AgentLife()
    assert refused(accept(db, other.send(other.period({"GPU-1": {8: 1}})), NOW)) == Reason.KEY_REUSED
    moved = replace(life.period(), boot=replace(life.period().boot, anchor_us=T0 - 6))
    assert refused(accept(db, wire.encode(moved, life.prev), NOW)) == Reason.OTHER_BOOT
    live = AgentLife(source_id="agent:h2", origin=Origin.LIVE)
    assert refused(accept(db, live.send(live.period()), NOW)) == Reason.OTHER_ORIGIN
    assert refused(accept(db, wire.encode(replace(lawful_samples(), end_us=T0), b""), NOW)) == Reason.BAD_PERIOD
    assert [batch.seq for batch in stored(db)] == [1, 2, 3]
    with db.read() as connection:
        kept = quarantine.entries(connection)
        assert {entry.engine for entry in kept} == {"agent:h1", "agent:h2"}
        assert list(fact_audit.fact_breaches(connection)) == []
    assert audit.audit(db) == ()


def test_refused_samples_can_be_tried_again(db: Database) -> None:
    life = AgentLife()
    late = life.send(life.period())
    assert refused(accept(db, late, T0 - DAY)) == Reason.FROM_THE_FUTURE
    with db.read() as connection:
        (entry,) = quarantine.entries(connection)
    assert retry(db, entry.id, NOW).status is Status.ACCEPTED


def test_engines_and_agents_share_a_transaction(db: Database) -> None:
    engine, agent = Life(), AgentLife()
    raws = [
        engine.send(engine.announce()),
        agent.send(agent.period({"GPU-2": {5: 3}, "GPU-1": {}}, gpus=GPUS)),
        engine.send(engine.period({}, opens=True, standing=True)),
    ]
    assert [one.status for one in accept_several(db, raws, NOW)] == [Status.ACCEPTED] * 3
    assert len(stored(db)) == 1


def test_an_agent_never_appears_as_an_engine(db: Database) -> None:
    life = AgentLife()
    assert accept(db, life.send(life.period({"GPU-1": {7: 10}}, gpus=GPUS)), NOW).status is Status.ACCEPTED
    with db.read() as connection:
        assert fleet.engine_states(connection, NOW, all_of_them=True) == ()
        assert inputs.load_boots(connection, T0, NOW) == ()
        for table in ("boots", "batches", "sources", "lost_periods"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_retention_takes_samples_by_whole_days(db: Database) -> None:
    db.retention_days = 2
    life = AgentLife()
    for day in range(5):
        life.now_us = T0 + day * DAY
        for _ in range(2):
            assert accept(db, life.send(life.period({"GPU-1": {7: day}}, gpus=GPUS)), life.now_us).status == "accepted"
    assert retention.delete_old_facts(db, T0 + 4 * DAY + 100) == 4
    assert [batch.start_us // DAY - T0 // DAY for batch in stored(db)] == [2, 2, 3, 3, 4, 4]
    with db.read() as connection:
        for table in sample_tables.SAMPLES:
            days = connection.execute(text(f"SELECT min(day) FROM {table.name}")).scalar_one()
            assert days is None or days >= T0 // DAY + 2
        assert list(fact_audit.fact_breaches(connection)) == []
    assert retention.delete_old_facts(db, T0 + 4 * DAY + 100) == 0


def test_a_device_of_the_builder_adds_up() -> None:
    row = device("GPU-1", 5)
    assert row.used_bytes == flat(5)
    parts = (row.used_bytes, row.free_bytes, row.reserved_bytes)
    assert sum(part.mean for part in parts if part) == (row.total_bytes and row.total_bytes.mean)
