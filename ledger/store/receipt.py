"""What the ledger knows beside a batch, when it has to decide whether to take it.

All of it is read under the engine's lock, so what was read still holds when the batch is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from ledger.core.records import PERIOD_US, Batch, Origin
from ledger.store.database import Connection, ask, lock
from ledger.store.tables import batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


Near = tuple[Neighbour | None, Neighbour | None]
"""The stored batches of a boot nearest to a seq: at or before it, and after it."""


def lock_engines(connection: Connection, engines: Iterable[str]) -> None:
    """Let one writer at a time decide about the batches of these engines, until its transaction ends."""
    lock(connection, *[f"engine:{engine}" for engine in sorted(engines)])


def neighbours(connection: Connection, places: Sequence[tuple[int, int]], *, table: Table = batches) -> list[Near]:
    """What is stored around each (boot, seq); ``table`` has the keys."""
    found = ask(connection, _around(table.name), [{"boot": boot, "seq": seq} for boot, seq in places])
    return [_near(rows, seq) for rows, (_, seq) in zip(found, places, strict=True)]


@cache
def _around(table: str) -> str:
    columns = "seq, start_us, end_us, digest, prev"
    return (
        f"SELECT * FROM (SELECT {columns} FROM {table} WHERE boot = :boot AND seq <= :seq "  # noqa: S608
        f"ORDER BY seq DESC LIMIT 1) AS before UNION ALL SELECT * FROM (SELECT {columns} FROM {table} "
        "WHERE boot = :boot AND seq > :seq ORDER BY seq LIMIT 1) AS after ORDER BY 1"
    )


def _near(rows: Sequence[Sequence[Any]], seq: int) -> Near:
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
    found = origin_of(connection)
    if found is None:
        connection.execute(
            text(
                "INSERT INTO ledger_origin (one, origin, fixed_us) VALUES (1, :origin, :fixed_us) "
                "ON CONFLICT DO NOTHING"
            ),
            {"origin": origin.value, "fixed_us": received_us},
        )
        found = origin_of(connection)
        assert found is not None
    return found


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The time that a batch claims for its boot, whose id is ``boot``."""

    engine: str
    boot: int
    seq: int
    start_us: int
    end_us: int
    received_us: int


def settle_overlaps(connection: Connection, claims: Sequence[Claim]) -> list[bool]:
    """Note which periods are lost because two boots of an engine claim their time; ``claims``: of each engine one.

    The boot that was first accepted later (the higher id) loses each overlapping period whole, whichever
    arrives first. Returns of each claim whether it lost.
    """
    questions = [
        {
            "engine": claim.engine,
            "boot": claim.boot,
            # No period is longer: an older start cannot reach us, and the index need not be read from there.
            "earliest": claim.start_us - PERIOD_US,
            "start_us": claim.start_us,
            "end_us": claim.end_us,
        }
        for claim in claims
    ]
    lost = []
    for claim, rows in zip(claims, ask(connection, _OVERLAPPING, questions), strict=True):
        notes = [_note(claim, other_boot, other_seq) for other_boot, other_seq in rows]
        for note in notes:
            connection.execute(
                text(
                    "INSERT INTO lost_periods (boot, seq, winner_boot, winner_seq, noticed_us) "
                    "VALUES (:boot, :seq, :winner_boot, :winner_seq, :noticed_us) ON CONFLICT DO NOTHING"
                ),
                note,
            )
        lost.append(any(note["boot"] == claim.boot for note in notes))
    return lost


_OVERLAPPING: Final = (
    "SELECT b.boot, b.seq FROM boots o JOIN batches b ON b.boot = o.id WHERE o.engine = :engine "
    "AND o.id <> :boot AND b.start_us > :earliest AND b.start_us < :end_us AND b.end_us > :start_us "
    "AND b.end_us > b.start_us AND :end_us > :start_us ORDER BY b.boot, b.seq"
)


def _note(claim: Claim, other_boot: int, other_seq: int) -> dict[str, int]:
    loser, winner = ((claim.boot, claim.seq), (other_boot, other_seq))
    if other_boot > claim.boot:
        loser, winner = winner, loser
    return {
        "boot": loser[0],
        "seq": loser[1],
        "winner_boot": winner[0],
        "winner_seq": winner[1],
        "noticed_us": claim.received_us,
    }
