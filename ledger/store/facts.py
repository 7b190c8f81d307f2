"""Writing facts: one batch, in the transaction of its caller.

Invariants: the key, the rows and their effects are in one transaction; ids of dimensions and sources are
remembered by a process only once that transaction is committed; everybody takes locks in one order (engine,
origin, source, dimensions sorted, rows in the order of their tables, counts), so that writers do not deadlock.

Large tables take a bulk path: ``executemany`` of plain tuples on SQLite, ``COPY`` on PostgreSQL.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Table, select, text

from ledger import limits
from ledger.core.records import Batch, Boot, Dimensions, Source
from ledger.store import tables
from ledger.store.database import Database, lock
from ledger.store.fact_rows import Row, day_of, dimensions_in, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_COPIED_FROM: Final = 12
"""Rows from which a COPY of its own (two round trips) is cheaper than an INSERT a row in a shared one."""

_CHUNK: Final = 500
"""Dimension sets in one statement: six values each stay far below SQLite's 32 766 and keep plans short."""


@dataclass(slots=True)
class Learned:
    """Ids met in one transaction; :func:`remember` keeps them once it is committed."""

    dimensions: dict[Dimensions, int] = field(default_factory=dict)
    sources: dict[Source, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What the ledger adds to a batch when it takes it."""

    digest: bytes
    prev: bytes
    kept_digest: bytes
    received_us: int
    ahead: bool
    missing_before: int


def remember(db: Database, learned: Learned) -> None:
    """Keep the ids of a committed transaction for the next ones of this process."""
    for kind, found in (("dimensions", learned.dimensions), ("sources", learned.sources)):
        known = db.known.setdefault(kind, {})
        if len(known) + len(found) > limits.DIMENSION_CACHE_MAX:
            known.clear()
        known.update(found)


def find_boot(connection: Connection, engine: str, boot_id: str) -> tuple[int, Boot] | None:
    """The id and the record of a boot that was seen before."""
    row = connection.execute(
        text("SELECT id, anchor_us, started_us FROM boots WHERE engine = :engine AND boot_id = :boot_id"),
        {"engine": engine, "boot_id": boot_id},
    ).one_or_none()
    return None if row is None else (row[0], Boot(boot_id=boot_id, anchor_us=row[1], started_us=row[2]))


def add_boot(connection: Connection, engine: str, boot: Boot, received_us: int) -> int:
    """The id of a new boot. The caller holds the engine's lock, so ids rise in the order of acceptance."""
    return int(
        connection.execute(
            tables.boots.insert()
            .values(
                engine=engine,
                boot_id=boot.boot_id,
                anchor_us=boot.anchor_us,
                started_us=boot.started_us,
                received_us=received_us,
            )
            .returning(tables.boots.c.id)
        ).scalar_one()
    )


def insert_batch(
    db: Database, connection: Connection, batch: Batch, *, boot: int, receipt: Receipt, learned: Learned
) -> None:
    """Write the key and the rows of ``batch``, whose boot has the id ``boot``."""
    source = _source_id(db, connection, batch.source, learned)
    ids = _ids_of(db, connection, batch, learned)
    key = (
        boot,
        batch.seq,
        day_of(batch.start_us),
        source,
        batch.start_us,
        batch.end_us,
        batch.skew_us,
        int(batch.standing is not None),
        receipt.received_us,
        int(receipt.ahead),
        receipt.missing_before,
        receipt.digest,
        receipt.prev,
        receipt.kept_digest,
    )
    few: list[tuple[Table, list[Row]]] = [(tables.batches, [key])]
    many: list[tuple[Table, list[Row]]] = []
    for table, rows in rows_of(batch, boot, ids):
        (few if len(rows) < _COPIED_FROM else many).append((table, rows))
    write_few(connection, few)
    for table, rows in many:
        write_rows(connection, table, rows)


def write_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert tuples in the order of the table's columns, by the fastest way that the database has.

    Goes past SQLAlchemy, which would take as long as the database; :meth:`Database.write` knows the driver's
    errors as well as SQLAlchemy's.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        driver.executemany(_statements(table)[0], rows)
        return
    with driver.cursor() as cursor, cursor.copy(_statements(table)[2]) as copy:
        for row in rows:
            copy.write_row(row)


def write_few(connection: Connection, parts: Sequence[tuple[Table, Sequence[Row]]]) -> None:
    """:func:`write_rows` for several tables with a few rows each: on PostgreSQL they share one round trip."""
    if connection.dialect.name == "sqlite":
        for table, rows in parts:
            write_rows(connection, table, rows)
        return
    driver: Any = connection.connection.driver_connection
    with driver.pipeline(), driver.cursor() as cursor:
        for table, rows in parts:
            for row in rows:
                cursor.execute(_statements(table)[1], row)


@cache
def _statements(table: Table) -> tuple[str, str, str]:
    """INSERT as sqlite3 and as psycopg want it, and COPY."""
    number = len(table.columns)
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    insert = f'INSERT INTO "{table.name}" ({columns}) VALUES '  # noqa: S608 - names are our own
    return (
        f"{insert}({', '.join('?' * number)})",
        f"{insert}({', '.join(['%s'] * number)})",
        f'COPY "{table.name}" ({columns}) FROM STDIN',
    )


def ensure_day(db: Database, time_us: int) -> None:
    """Have the partitions of the day of ``time_us`` in a transaction of its own; only PostgreSQL has any.

    A partition is made as a table and attached, which keeps no writer of other days waiting.
    """
    day = day_of(time_us)
    if db.dialect == "sqlite" or day in db.known.setdefault("days", {}):
        return

    def work(connection: Connection) -> None:
        lock(connection, "partitions")
        for table in tables.PARTITIONED:
            name = partition_name(table, day)
            if connection.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar_one() is None:
                connection.exec_driver_sql(
                    f'CREATE TABLE "{name}" (LIKE "{table.name}" INCLUDING DEFAULTS INCLUDING CONSTRAINTS '
                    f"INCLUDING INDEXES, CHECK (day = {day:d}))"
                )
                connection.exec_driver_sql(
                    f'ALTER TABLE "{table.name}" ATTACH PARTITION "{name}" FOR VALUES IN ({day:d})'
                )

    db.write(work)
    db.known["days"][day] = 1


def partition_name(table: Table, day: int) -> str:
    """The table that holds one day of ``table`` on PostgreSQL."""
    return f"{table.name}_d{day:d}"


def count(connection: Connection, reasons: Iterable[tuple[str, int]], received_us: int) -> None:
    """Add to the counts of the day, in sorted order so that two writers never wait for each other in a ring."""
    for reason, times in sorted(reasons):
        connection.execute(
            text(
                'INSERT INTO ingest_counts (day, reason, "count") VALUES (:day, :reason, :times) '
                'ON CONFLICT (day, reason) DO UPDATE SET "count" = ingest_counts."count" + excluded."count"'
            ),
            {"day": day_of(received_us), "reason": reason, "times": times},
        )


def _source_id(db: Database, connection: Connection, source: Source, learned: Learned) -> int:
    known = db.known.get("sources", {}).get(source)
    if known is not None:
        return int(known)
    values = {name: getattr(source, name) for name in tables.sources.columns.keys() if name != "id"}  # noqa: SIM118
    found = connection.execute(
        select(tables.sources.c.id).where(*[tables.sources.c[name] == value for name, value in values.items()])
    ).scalar_one_or_none()
    if found is None:
        found = connection.execute(tables.sources.insert().values(**values).returning(tables.sources.c.id)).scalar_one()
    learned.sources[source] = found
    return int(found)


def dimension_ids(
    db: Database, connection: Connection, wanted: set[Dimensions], learned: Learned | None = None
) -> dict[Dimensions, int]:
    """The id of each dimension set; those not seen before are interned in this transaction."""
    known = db.known.get("dimensions", {})
    ids = {dims: known[dims] for dims in wanted if dims in known}
    missing = sorted(wanted - ids.keys())
    for start in range(0, len(missing), _CHUNK):
        chunk = missing[start : start + _CHUNK]
        found = _look_up(connection, chunk)
        new = [dims for dims in chunk if dims not in found]
        if new:
            _intern(connection, new)
            found |= _look_up(connection, new)
        ids |= found
        if learned is not None:
            learned.dimensions.update(found)
    return ids


def _ids_of(db: Database, connection: Connection, batch: Batch, learned: Learned) -> dict[int, int]:
    """The id of each dimension set of a batch, by the identity of its object."""
    known = db.known.get("dimensions", {})
    objects = dimensions_in(batch)
    ids, unknown = {}, []
    for identity, dims in objects.items():
        number = known.get(dims)
        if number is None:
            unknown.append(identity)
        else:
            ids[identity] = number
    if unknown:
        found = dimension_ids(db, connection, {objects[identity] for identity in unknown}, learned)
        ids |= {identity: found[objects[identity]] for identity in unknown}
    return ids


_COLUMNS: Final = "tenant, session, model, adapter, scenario, priority"


def _look_up(connection: Connection, chunk: Sequence[Dimensions]) -> dict[Dimensions, int]:
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    values = ", ".join([f"({', '.join([mark] * 6)})"] * len(chunk))
    rows = connection.exec_driver_sql(
        f"WITH wanted ({_COLUMNS}) AS (VALUES {values}) "  # noqa: S608
        f"SELECT d.id, d.tenant, d.session, d.model, d.adapter, d.scenario, d.priority FROM wanted w "
        "JOIN dimensions d ON d.tenant = w.tenant AND d.session = w.session AND d.model = w.model "
        "AND d.adapter = w.adapter AND d.scenario = w.scenario AND d.priority = w.priority",
        tuple(value for dims in chunk for value in astuple(dims)),
    )
    return {
        Dimensions(tenant=row[1], session=row[2], model=row[3], adapter=row[4], scenario=row[5], priority=row[6]): row[
            0
        ]
        for row in rows
    }


def _intern(connection: Connection, new: Sequence[Dimensions]) -> None:
    """Insert sorted dimension sets; one that another writer inserts at the same time is waited for."""
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    values = ", ".join([f"({', '.join([mark] * 6)})"] * len(new))
    connection.exec_driver_sql(
        f"INSERT INTO dimensions ({_COLUMNS}) VALUES {values} ON CONFLICT DO NOTHING",  # noqa: S608
        tuple(value for dims in new for value in astuple(dims)),
    )
