"""Writing samples: one batch of an agent, in the transaction of its caller.

The rules are those of :mod:`ledger.store.facts`, whose bulk path and whose memory of ids it shares: locks are taken in
one order (agent, source, GPUs sorted, rows in the order of their tables).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, Table, select

from ledger.core.records import Boot
from ledger.store import sample_tables as tables
from ledger.store.database import Database, lock
from ledger.store.fact_rows import day_of
from ledger.store.facts import wait, write_few
from ledger.store.sample_rows import rows_of, uuids_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.samples import Agent, SampleBatch
    from ledger.store.facts import Learned, Receipt


def lock_agent(connection: Connection, source_id: str) -> None:
    """Let one writer at a time decide about an agent's batches, until its transaction ends."""
    lock(connection, f"agent:{source_id}")


def find_boot(
    db: Database, connection: Connection, source_id: str, boot: Boot, learned: Learned
) -> tuple[int, Boot] | None:
    """The id and the record of the boot with this id that was seen before; the record may be another."""
    known = db.known.get("agent_boots", {}).get((source_id, boot)) or learned.agent_boots.get((source_id, boot))
    if known is not None:
        return known, boot
    b = tables.agent_boots
    row = connection.execute(
        select(b.c.id, b.c.anchor_us, b.c.started_us).where(b.c.source_id == source_id, b.c.boot_id == boot.boot_id)
    ).one_or_none()
    if row is None:
        return None
    found = Boot(boot_id=boot.boot_id, anchor_us=row.anchor_us, started_us=row.started_us)
    learned.agent_boots[source_id, found] = row.id
    return int(row.id), found


def add_boot(connection: Connection, source_id: str, boot: Boot, received_us: int) -> int:
    """The id of a new boot."""
    b = tables.agent_boots
    values = {
        "source_id": source_id,
        "boot_id": boot.boot_id,
        "anchor_us": boot.anchor_us,
        "started_us": boot.started_us,
        "received_us": received_us,
    }
    return int(connection.execute(b.insert().values(**values).returning(b.c.id)).scalar_one())


def intern(db: Database, connection: Connection, batches: Iterable[SampleBatch], learned: Learned) -> None:
    """The ids of all GPUs that several batches of one transaction name, sorted over all of them."""
    known = db.known.get("gpus", {})
    wanted = {uuid for batch in batches for uuid in uuids_in(batch)}
    learned.gpus |= {uuid: known[uuid] for uuid in wanted if uuid in known}
    missing = sorted(wanted - learned.gpus.keys())
    if not missing:
        return
    learned.gpus |= _ids(connection, missing)
    new = [uuid for uuid in missing if uuid not in learned.gpus]
    if new:
        marks = ", ".join(["(%s)" if db.dialect == "postgresql" else "(?)"] * len(new))
        connection.exec_driver_sql(f"INSERT INTO gpus (uuid) VALUES {marks} ON CONFLICT DO NOTHING", tuple(new))  # noqa: S608
        learned.gpus |= _ids(connection, new)


def insert(
    db: Database, connection: Connection, batch: SampleBatch, *, boot: int, receipt: Receipt, learned: Learned
) -> None:
    """Write the key of ``batch``, whose GPUs are interned; its rows follow with :func:`ledger.store.facts.flush`."""
    key = (
        boot,
        batch.seq,
        day_of(batch.start_us),
        _agent_id(db, connection, batch.source, learned),
        batch.start_us,
        batch.end_us,
        batch.skew_us,
        int(batch.gpus is not None),
        receipt.received_us,
        int(receipt.ahead),
        receipt.missing_before,
        receipt.digest,
        receipt.prev,
        receipt.kept_digest,
    )
    parts: list[tuple[Table, Sequence[tuple[object, ...]]]] = [(tables.agent_batches, [key])]
    write_few(connection, parts)
    for table, rows in rows_of(batch, boot, learned.gpus):
        wait(learned, table, rows)


def _ids(connection: Connection, uuids: Sequence[str]) -> dict[str, int]:
    g = tables.gpus
    return {row.uuid: row.id for row in connection.execute(select(g).where(g.c.uuid.in_(uuids)))}


def _agent_id(db: Database, connection: Connection, source: Agent, learned: Learned) -> int:
    known = db.known.get("agents", {}).get(source) or learned.agents.get(source)
    if known is not None:
        return int(known)
    a = tables.agents
    values = {name: getattr(source, name) for name in source.__slots__}
    found = connection.execute(
        select(a.c.id).where(*(a.c[name] == value for name, value in values.items()))
    ).scalar_one_or_none()
    if found is None:
        found = connection.execute(a.insert().values(**values).returning(a.c.id)).scalar_one()
    learned.agents[source] = found
    return int(found)
