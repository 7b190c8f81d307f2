"""What was refused, as it came: to be listed, read, and tried again after an upgrade or a repair.

Invariant: bounded in rows and bytes; what is pushed out is the oldest, and it is counted. The same bytes are
kept, and counted, once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from ledger import limits
from ledger.refusals import Note
from ledger.store.facts import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.store.database import Connection

_COLUMNS = 'id, received_us, engine, boot_id, seq, reason, detail, "bytes"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A refused batch; ``engine``, ``boot_id`` and ``seq`` are what it claims to be of, where that can be read."""

    id: int
    received_us: int
    engine: str
    boot_id: str
    seq: int | None
    reason: str
    detail: str
    size_bytes: int


def keep(
    connection: Connection,
    raw: bytes,
    *,
    claimed: tuple[str, str, int | None],
    reason: str,
    detail: str,
    received_us: int,
) -> bool:
    """Keep ``raw`` and count its reason; False, and nothing changed, where the same bytes are here already.

    Bytes beyond the bound of a batch are counted by their digest and not kept: they could be anything.
    """
    digest = hashlib.sha256(raw).digest()
    kept = raw if len(raw) <= limits.BATCH_BYTES_MAX else b""
    inserted = connection.execute(
        text(
            'INSERT INTO quarantine (received_us, engine, boot_id, seq, reason, detail, "bytes", digest, raw) '
            "VALUES (:received_us, :engine, :boot_id, :seq, :reason, :detail, :bytes, :digest, :raw) "
            "ON CONFLICT (digest) DO NOTHING"
        ),
        {
            "received_us": received_us,
            "engine": claimed[0],
            "boot_id": claimed[1],
            "seq": claimed[2],
            "reason": reason,
            "detail": storable(detail),
            "bytes": len(kept),
            "digest": digest,
            "raw": kept,
        },
    )
    if not inserted.rowcount:
        return False
    dropped = _bound(connection)
    counts = [(reason, 1)]
    if dropped:
        counts.append((Note.QUARANTINE_DROPPED, dropped))
    count(connection, counts, received_us)
    return True


def entries(connection: Connection, *, most: int = limits.QUARANTINE_ROWS_MAX) -> tuple[Quarantined, ...]:
    """What is in quarantine, oldest first."""
    rows = connection.execute(text(f"SELECT {_COLUMNS} FROM quarantine ORDER BY id LIMIT :most"), {"most": most})  # noqa: S608
    return tuple(_entry(row) for row in rows)


def entry(connection: Connection, number: int) -> tuple[Quarantined, bytes] | None:
    """One entry with its bytes."""
    row = connection.execute(
        text(f"SELECT {_COLUMNS}, raw FROM quarantine WHERE id = :id"),  # noqa: S608
        {"id": number},
    ).one_or_none()
    return None if row is None else (_entry(row), bytes(row[8]))


def release(connection: Connection, number: int) -> None:
    """Take an entry out: its batch was accepted."""
    connection.execute(text("DELETE FROM quarantine WHERE id = :id"), {"id": number})


def still_refused(connection: Connection, number: int, *, reason: str, detail: str) -> None:
    """An entry was tried again and refused again, perhaps for another reason."""
    connection.execute(
        text("UPDATE quarantine SET reason = :reason, detail = :detail WHERE id = :id"),
        {"id": number, "reason": reason, "detail": storable(detail)},
    )


def storable(detail: str) -> str:
    """``detail`` as every database takes it: bounded, without control characters and lone surrogates."""
    return "".join(c if c.isprintable() else "?" for c in detail[: limits.QUARANTINE_DETAIL_CHARS_MAX])


def counts(connection: Connection) -> tuple[tuple[int, str, int], ...]:
    """(day, reason, count) of every answer that was counted, in order."""
    rows = connection.execute(text('SELECT day, reason, "count" FROM ingest_counts ORDER BY day, reason'))
    return tuple((row[0], row[1], row[2]) for row in rows)


def _bound(connection: Connection) -> int:
    """Drop the oldest entries until rows and bytes are within their bounds; how many were dropped."""
    rows, size = connection.execute(text('SELECT count(*), coalesce(sum("bytes"), 0) FROM quarantine')).one()
    dropped = 0
    while rows > limits.QUARANTINE_ROWS_MAX or size > limits.QUARANTINE_BYTES_MAX:
        oldest, oldest_bytes = connection.execute(text('SELECT id, "bytes" FROM quarantine ORDER BY id LIMIT 1')).one()
        release(connection, oldest)
        rows, size, dropped = rows - 1, size - oldest_bytes, dropped + 1
    return dropped


def _entry(row: Sequence[Any]) -> Quarantined:
    return Quarantined(
        id=row[0],
        received_us=row[1],
        engine=row[2],
        boot_id=row[3],
        seq=row[4],
        reason=row[5],
        detail=row[6],
        size_bytes=row[7],
    )
