"""What the ledger knows beside a batch, when it has to decide whether to take it.

All of it is read under the engine's lock, so what was read still holds when the batch is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

from ledger.core.records import PERIOD_US, Batch, Origin
from ledger.store.database import Connection, lock
from ledger.store.tables import batches

if TYPE_CHECKING:
    from sqlalchemy import Table

    from ledger.core.records import PoolOpen


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """The stored batch of a boot that is nearest to a seq, on one side."""

    seq: int
    start_us: int
    end_us: int
    digest: bytes
    prev: bytes


def lock_engine(connection: Connection, engine: str) -> None:
    """Let one writer at a time decide about an engine's batches, until its transaction ends."""
    lock(connection, f"engine:{engine}")


def neighbours(
    connection: Connection, boot: int, seq: int, *, table: Table = batches
) -> tuple[Neighbour | None, Neighbour | None]:
    """The stored batches of ``boot`` nearest to ``seq``: at or before it, and after it; ``table`` has their keys."""
    columns = "seq, start_us, end_us, digest, prev"
    rows = connection.execute(
        text(
            f"SELECT * FROM (SELECT {columns} FROM {table.name} WHERE boot = :boot AND seq <= :seq "  # noqa: S608
            f"ORDER BY seq DESC LIMIT 1) AS before UNION ALL SELECT * FROM (SELECT {columns} FROM {table.name} "
            "WHERE boot = :boot AND seq > :seq ORDER BY seq LIMIT 1) AS after ORDER BY 1"
        ),
        {"boot": boot, "seq": seq},
    )
    found = [
        Neighbour(seq=row[0], start_us=row[1], end_us=row[2], digest=bytes(row[3]), prev=bytes(row[4])) for row in rows
    ]
    return (
        next((near for near in found if near.seq <= seq), None),
        next((near for near in found if near.seq > seq), None),
    )


def origin_of(connection: Connection) -> Origin | None:
    """Whether the ledger is live or simulated; None before its first batch."""
    found = connection.execute(text("SELECT origin FROM ledger_origin")).scalar_one_or_none()
    return None if found is None else Origin(found)


def fix_origin(connection: Connection, origin: Origin, received_us: int) -> Origin:
    """The ledger's origin; the first batch fixes it, and a race for it has one winner."""
    read = text("SELECT origin FROM ledger_origin")
    found = connection.execute(read).scalar_one_or_none()
    if found is None:
        connection.execute(
            text(
                "INSERT INTO ledger_origin (one, origin, fixed_us) VALUES (1, :origin, :fixed_us) "
                "ON CONFLICT DO NOTHING"
            ),
            {"origin": origin.value, "fixed_us": received_us},
        )
        found = connection.execute(read).scalar_one()
    return Origin(found)


def open_paying_pools(connection: Connection, boot: int) -> dict[str, int]:
    """Paying pools of a boot that are open by what is stored: name, and when each was opened."""
    rows = connection.execute(
        text(
            "SELECT o.pool, max(o.at_us) FROM pool_opens o WHERE o.boot = :boot AND o.paying = 1 AND NOT EXISTS ("
            "SELECT 1 FROM pool_closes c WHERE c.boot = o.boot AND c.pool = o.pool AND c.at_us >= o.at_us "
            "AND c.seq >= o.seq) GROUP BY o.pool"
        ),
        {"boot": boot},
    )
    return {row[0]: row[1] for row in rows}


def second_paying(connection: Connection, boot: int, batch: Batch) -> PoolOpen | None:
    """An opening in ``batch`` of a paying pool while another one of the boot stays open."""
    opens = [opened for opened in batch.opens if opened.paying]
    if not opens:
        return None
    closed = {pool.pool: pool.at_us for pool in batch.closes}
    for pool, since in open_paying_pools(connection, boot).items():
        for opened in opens:
            if opened.pool != pool and since <= opened.at_us < closed.get(pool, opened.at_us + 1):
                return opened
    return None


def settle_overlaps(connection: Connection, engine: str, boot: int, batch: Batch, received_us: int) -> bool:
    """Note which periods are lost because two boots of the engine claim the time of ``batch``.

    The boot that was first accepted later (the higher id) loses each overlapping period whole, whichever
    arrives first. Returns whether ``batch`` itself lost.
    """
    if batch.end_us == batch.start_us:
        return False
    rows = connection.execute(
        text(
            "SELECT b.boot, b.seq FROM boots o JOIN batches b ON b.boot = o.id WHERE o.engine = :engine "
            "AND o.id <> :boot AND b.start_us > :earliest AND b.start_us < :end_us AND b.end_us > :start_us "
            "AND b.end_us > b.start_us ORDER BY b.boot, b.seq"
        ),
        {
            "engine": engine,
            "boot": boot,
            # No period is longer: an older start cannot reach us, and the index need not be read from there.
            "earliest": batch.start_us - PERIOD_US,
            "start_us": batch.start_us,
            "end_us": batch.end_us,
        },
    ).all()
    lost = False
    for other_boot, other_seq in rows:
        loser, winner = ((boot, batch.seq), (other_boot, other_seq))
        if other_boot > boot:
            loser, winner = winner, loser
        lost = lost or loser[0] == boot
        connection.execute(
            text(
                "INSERT INTO lost_periods (boot, seq, winner_boot, winner_seq, noticed_us) "
                "VALUES (:boot, :seq, :winner_boot, :winner_seq, :noticed_us) ON CONFLICT DO NOTHING"
            ),
            {
                "boot": loser[0],
                "seq": loser[1],
                "winner_boot": winner[0],
                "winner_seq": winner[1],
                "noticed_us": received_us,
            },
        )
    return lost
