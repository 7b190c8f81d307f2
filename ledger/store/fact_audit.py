"""Whether the facts are still what was received: every batch made again, its digest and its chain compared.

A batch answers for all its rows by its digest; the digests answer for each other, since each batch names the
one before. What nothing covers is what the ledger itself noted on receipt: docs/store.md lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from ledger import limits, wire
from ledger.core.samples import SampleBatch
from ledger.laws import breach
from ledger.sample_laws import sample_breach
from ledger.store import sample_tables, tables
from ledger.store.fact_reads import StoredBatch, StoredBoot, boots_of, stored_batches
from ledger.store.sample_reads import StoredSamples, agent_boots, stored_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Table

    from ledger.store.database import Connection


def fact_breaches(connection: Connection, *, since_us: int = 0) -> Iterator[str]:
    """A sentence for every batch that is not what was received, breaks a law, or lacks its key.

    ``since_us``: of batches that begin then or later, and of the rows of that day on.
    """
    of_all = since_us or None
    for boot in boots_of(connection, since_us=of_all):
        yield from _boot_breaches(connection, f"engine {boot.engine}", boot, stored_batches)
    for boot in agent_boots(connection, since_us=of_all):
        yield from _boot_breaches(connection, f"agent {boot.engine}", boot, stored_samples)
    first = since_us // limits.DAY_US
    yield from _stray_rows(connection, tables.batches, tables.PARTITIONED, first)
    yield from _stray_rows(connection, sample_tables.agent_batches, sample_tables.SAMPLES, first)


def _boot_breaches(connection: Connection, who: str, boot: StoredBoot, read: Callable[..., Any]) -> Iterator[str]:
    unread: list[str] = []

    def unreadable(seq: int, why: str) -> None:
        unread.append(f"{_name(who, boot, seq)}: its rows cannot be read ({why})")

    found: Iterator[StoredBatch | StoredSamples] = read(
        connection, boot, first_seq=boot.first_seq, unreadable=unreadable
    )
    before: StoredBatch | StoredSamples | None = None
    for stored in found:
        batch, name = stored.batch, _name(who, boot, stored.batch.seq)
        made = wire.digest(batch, stored.prev)
        if made != stored.kept_digest:
            yield f"{name}: its rows have digest {made.hex()}, {stored.kept_digest.hex()} was stored"
        if before is not None and before.batch.seq == batch.seq - 1:
            if before.digest != stored.prev:
                yield f"{name}: names {stored.prev.hex()} before it, where {before.digest.hex()} is stored"
            if before.batch.end_us > batch.start_us:
                yield f"{name}: starts at {batch.start_us}, before the batch before it ends"
        refusal = sample_breach(batch) if isinstance(batch, SampleBatch) else breach(batch)
        if refusal is not None:
            yield f"{name}: {refusal.reason}: {refusal.detail}"
        before = stored
    yield from unread


def _stray_rows(connection: Connection, keys: Table, of_batches: Sequence[Table], first_day: int) -> Iterator[str]:
    for table in of_batches:
        rows = connection.execute(
            text(
                f"SELECT DISTINCT t.day, t.boot, t.seq FROM {table.name} t LEFT JOIN {keys.name} b "  # noqa: S608
                "ON b.boot = t.boot AND b.seq = t.seq AND b.day = t.day WHERE b.boot IS NULL AND t.day >= :first_day "
                "ORDER BY 1, 2, 3"
            ),
            {"first_day": first_day},
        )
        for day, boot, seq in rows:
            yield f"{table.name} has rows of boot {boot}, seq {seq}, day {day}, and no such batch"


def _name(who: str, boot: StoredBoot, seq: int) -> str:
    return f"{who}, boot {boot.boot.boot_id}, seq {seq}"
