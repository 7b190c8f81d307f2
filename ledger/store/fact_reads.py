"""Facts read back: boots, and their batches exactly as they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, func, select

from ledger import limits
from ledger.core.records import Batch, Boot, Dimensions, Origin, Source
from ledger.errors import StoreError
from ledger.store import tables
from ledger.store.fact_rows import batch_of, hook_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from ledger.store.database import Connection

BATCHES_AT_ONCE: Final = 64
"""Batches read together: a quarter of an hour of one engine, some megabytes."""

_IDS_AT_ONCE: Final = 10_000
"""Ids in one statement; SQLite allows 32 766 values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBoot:
    """A boot, and the span of its batches. ``number`` rises in the order in which boots were first accepted."""

    number: int
    engine: str
    boot: Boot
    first_seq: int
    last_seq: int
    batches: int
    last_end_us: int

    @property
    def missing(self) -> int:
        """Seqs between the first and the last that never arrived."""
        return self.last_seq - self.first_seq + 1 - self.batches


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch made again from its rows, and the digests that were stored with its key."""

    batch: Batch
    digest: bytes
    prev: bytes
    kept_digest: bytes
    received_us: int


def boots_of(
    connection: Connection, engine: str | None = None, *, since_us: int | None = None
) -> tuple[StoredBoot, ...]:
    """Boots that still have batches, of one engine or of all, in the order of first acceptance.

    ``since_us``: only batches count that begin then or later.
    """
    return boots_in(connection, tables.boots, tables.batches, "engine", name=engine, since_us=since_us)


def boots_in(
    connection: Connection,
    boots: Table,
    batches: Table,
    whose: str,
    *,
    name: str | None = None,
    since_us: int | None = None,
) -> tuple[StoredBoot, ...]:
    """Boots of one kind of sender, whose name is in the column ``whose``; see :func:`boots_of`."""
    boot, batch = boots.c, batches.c
    known = (boot.id, boot[whose], boot.boot_id, boot.anchor_us, boot.started_us)
    query = (
        select(*known, func.min(batch.seq), func.max(batch.seq), func.count(), func.max(batch.end_us))
        .join_from(boots, batches, batch.boot == boot.id)
        .group_by(*known)
        .order_by(boot.id)
    )
    if name is not None:
        query = query.where(boot[whose] == name)
    if since_us is not None:
        query = query.where(batch.day >= since_us // limits.DAY_US, batch.start_us >= since_us)
    return tuple(
        StoredBoot(
            number=row[0],
            engine=row[1],
            boot=Boot(boot_id=row[2], anchor_us=row[3], started_us=row[4]),
            first_seq=row[5],
            last_seq=row[6],
            batches=row[7],
            last_end_us=row[8],
        )
        for row in connection.execute(query)
    )


def stored_batches(
    connection: Connection,
    boot: StoredBoot,
    *,
    first_seq: int = 1,
    last_seq: int = limits.SEQ_MAX,
    unreadable: Callable[[int, str], None] | None = None,
) -> Iterator[StoredBatch]:
    """The batches of a boot by seq, each made again from its rows; memory is bounded whatever their number.

    A batch whose rows cannot be read (a word or an id that does not exist) is named to ``unreadable`` and
    passed over; without it, StoreError.
    """
    for heads in heads_in(connection, tables.batches, boot, first_seq=first_seq, last_seq=last_seq):
        yield from _batches(connection, boot, heads, unreadable or stop_at)


def heads_in(
    connection: Connection, batches: Table, boot: StoredBoot, *, first_seq: int, last_seq: int
) -> Iterator[Sequence[Any]]:
    """The rows of a boot's batches themselves, by seq, so many at once that memory is bounded; never none."""
    b = batches.c
    after = first_seq - 1
    while True:
        heads = connection.execute(
            select(batches)
            .where(b.boot == boot.number, b.seq > after, b.seq <= last_seq)
            .order_by(b.seq)
            .limit(BATCHES_AT_ONCE)
        ).all()
        if not heads:
            return
        after = heads[-1].seq
        yield heads


def dimensions_by_id(connection: Connection, ids: Iterable[int]) -> dict[int, Dimensions]:
    """The dimension sets with these ids."""
    columns = tables.dimensions.c
    wanted = sorted(set(ids))
    found = {}
    for start in range(0, len(wanted), _IDS_AT_ONCE):
        chunk = wanted[start : start + _IDS_AT_ONCE]
        for row in connection.execute(select(tables.dimensions).where(columns.id.in_(chunk))):
            found[row.id] = Dimensions(
                tenant=row.tenant,
                session=row.session,
                model=row.model,
                adapter=row.adapter,
                scenario=row.scenario,
                priority=row.priority,
            )
    return found


def stop_at(seq: int, why: str) -> None:
    """What a reader does about rows that cannot be read, unless it is told otherwise."""
    raise StoreError(f"the rows of batch {seq} cannot be read ({why}); restore the database from a backup")


def _batches(
    connection: Connection, boot: StoredBoot, heads: Sequence[Any], unreadable: Callable[[int, str], None]
) -> Iterator[StoredBatch]:
    seqs = (heads[0].seq, heads[-1].seq)
    days = (min(head.day for head in heads), max(head.day for head in heads))
    rows: dict[int, dict[Table, list[tuple[Any, ...]]]] = {head.seq: {} for head in heads}
    for table in (*tables.OF_BOOTS, *tables.PARTITIONED):
        for seq, row in rows_of_boot(connection, table, boot.number, seqs, days):
            if seq in rows:
                rows[seq].setdefault(table, []).append(row)
    dims = dimensions_by_id(
        connection,
        (row[at] for found in rows.values() for table, at in _DIMS_AT.items() for row in found.get(table, ())),
    )
    sources = _sources(connection, {head.source for head in heads})
    for head in heads:
        try:
            batch = batch_of(
                source=sources[head.source],
                boot=boot.boot,
                seq=head.seq,
                start_us=head.start_us,
                end_us=head.end_us,
                skew_us=head.skew_us,
                has_standing=bool(head.has_standing),
                hook=hook_of(head.hook),
                rows=rows[head.seq],
                dims=dims,
            )
        except (KeyError, TypeError, ValueError) as error:
            unreadable(head.seq, f"{type(error).__name__}: {error}")
            continue
        yield StoredBatch(
            batch=batch,
            digest=bytes(head.digest),
            prev=bytes(head.prev),
            kept_digest=bytes(head.kept_digest),
            received_us=head.received_us,
        )


_DIMS_AT: Final[Mapping[Table, int]] = {
    table: [column.name for column in table.columns if column.name not in ("day", "boot", "seq")].index("dims")
    for table in tables.PARTITIONED
    if "dims" in table.columns
}


def rows_of_boot(
    connection: Connection, table: Table, boot: int, seqs: tuple[int, int], days: tuple[int, int]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(seq, row from its place on) of the rows of a range of batches, by place."""
    columns = [column for column in table.columns if column.name not in ("day", "boot", "seq")]
    keys = [column for column in table.primary_key.columns if column.name in ("seq", "pos", "sub")]
    query = select(table.c.seq, *columns).where(_within(table, boot, seqs, days)).order_by(*keys)
    for row in connection.execute(query):
        yield row[0], tuple(row)[1:]


def _within(table: Table, boot: int, seqs: tuple[int, int], days: tuple[int, int]) -> ColumnElement[bool]:
    condition = and_(table.c.boot == boot, table.c.seq.between(*seqs))
    return and_(table.c.day.between(*days), condition) if "day" in table.columns else condition


def _sources(connection: Connection, ids: set[int]) -> dict[int, Source]:
    return {
        row.id: Source(
            engine=row.engine,
            origin=Origin(row.origin),
            cluster=row.cluster,
            namespace=row.namespace,
            pod=row.pod,
            host=row.host,
            software=row.software,
        )
        for row in connection.execute(select(tables.sources).where(tables.sources.c.id.in_(sorted(ids))))
    }
