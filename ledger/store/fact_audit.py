"""Whether the facts are still what was received: every batch made again, its digest and its chain compared.

A batch answers for all its rows by its digest; the digests answer for each other, since each batch names the
one before. What nothing covers is what the ledger itself noted on receipt: docs/store.md lists it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from ledger import wire
from ledger.laws import breach
from ledger.store import tables
from ledger.store.fact_reads import StoredBatch, StoredBoot, boots_of, stored_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.store.database import Connection


def fact_breaches(connection: Connection) -> Iterator[str]:
    """A sentence for every batch that is not what was received, breaks a law, or lacks its key."""
    for boot in boots_of(connection):
        yield from _boot_breaches(connection, boot)
    yield from _stray_rows(connection)


def _boot_breaches(connection: Connection, boot: StoredBoot) -> Iterator[str]:
    unread: list[str] = []

    def unreadable(seq: int, why: str) -> None:
        unread.append(f"{_name(boot, seq)}: its rows cannot be read ({why})")

    before: StoredBatch | None = None
    for stored in stored_batches(connection, boot, unreadable=unreadable):
        batch, name = stored.batch, _name(boot, stored.batch.seq)
        made = wire.digest(batch, stored.prev)
        if made != stored.kept_digest:
            yield f"{name}: its rows have digest {made.hex()}, {stored.kept_digest.hex()} was stored"
        if before is not None and before.batch.seq == batch.seq - 1:
            if before.digest != stored.prev:
                yield f"{name}: names {stored.prev.hex()} before it, where {before.digest.hex()} is stored"
            if before.batch.end_us > batch.start_us:
                yield f"{name}: starts at {batch.start_us}, before the batch before it ends"
        refusal = breach(batch)
        if refusal is not None:
            yield f"{name}: {refusal.reason}: {refusal.detail}"
        before = stored
    yield from unread


def _stray_rows(connection: Connection) -> Iterator[str]:
    for table in tables.PARTITIONED:
        rows = connection.execute(
            text(
                f"SELECT DISTINCT t.day, t.boot, t.seq FROM {table.name} t LEFT JOIN batches b "  # noqa: S608
                "ON b.boot = t.boot AND b.seq = t.seq AND b.day = t.day WHERE b.boot IS NULL ORDER BY 1, 2, 3"
            )
        )
        for day, boot, seq in rows:
            yield f"{table.name} has rows of boot {boot}, seq {seq}, day {day}, and no such batch"


def _name(boot: StoredBoot, seq: int) -> str:
    return f"engine {boot.engine}, boot {boot.boot.boot_id}, seq {seq}"
