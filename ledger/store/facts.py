"""Writing facts: one batch, in the transaction of its caller.

Invariants: the key, the rows and their effects are in one transaction; ids of dimensions and sources are
remembered by a process only once that transaction is committed; everybody takes locks in one order (engine,
origin, source, dimensions sorted, rows in the order of their tables, counts), so that writers do not deadlock.

Large tables take a bulk path: plain tuples, many to a statement, on SQLite; ``COPY`` on PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Connection, Table, select, text

from ledger import limits
from ledger.core.records import Batch, Boot, Dimensions, Origin, Source
from ledger.store import sample_tables, scrape_tables, tables
from ledger.store.database import Database, lock
from ledger.store.fact_rows import Row, day_of, dimensions_in, hook_text, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ledger.core.samples import Agent

_PARTITIONED: Final = (*tables.PARTITIONED, *sample_tables.SAMPLES, *scrape_tables.SCRAPED)
_ORDER: Final = {table: place for place, table in enumerate(_PARTITIONED)}

_COPIED_FROM: Final = 40
"""Rows from which a COPY of its own (two round trips) is cheaper than a part in a shared one."""

_TOGETHER: Final = (256, 32)
"""Rows in one INSERT on SQLite, as many as there are: it takes a quarter less than as many INSERTs of one row, and the
driver hands the GIL over less often. At most 36 columns: far below SQLite's 32 766 values."""

Values = tuple[str, str, str, str, str, int]
"""A dimension set in the order of its columns."""

_COLUMNS: Final = "tenant, session, model, adapter, scenario, priority"
_values: Final = attrgetter(*_COLUMNS.split(", "))

_CHUNK: Final = 500
"""Dimension sets in one statement: six values each stay far below SQLite's 32 766 and keep plans short."""


@dataclass(slots=True)
class Learned:
    """What one transaction has met: ids, which :func:`remember` keeps once it is committed, and rows to write.

    Keys, and rows of the small tables, wait in ``keys`` until :func:`flush_keys`; those of the large ones in ``rows``
    until :func:`flush`. So those of several batches go together.
    """

    keys: dict[Table, list[Row]] = field(default_factory=dict)
    rows: dict[tuple[Table, int], list[Row]] = field(default_factory=dict)
    origin: Origin | None = None
    dimensions: dict[Values, int] = field(default_factory=dict)
    """By their values, not the records: a tuple is hashed in a tenth of the time."""
    sources: dict[Source, int] = field(default_factory=dict)
    boots: dict[tuple[str, Boot], int] = field(default_factory=dict)
    agents: dict[Agent, int] = field(default_factory=dict)
    agent_boots: dict[tuple[str, Boot], int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    identities: dict[int, int] = field(default_factory=dict)
    """Ids by the identity of the objects of batches that live as long as this."""


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
    db.origin = learned.origin or db.origin
    for kind, found in (
        ("dimensions", learned.dimensions),
        ("sources", learned.sources),
        ("boots", learned.boots),
        ("agents", learned.agents),
        ("agent_boots", learned.agent_boots),
        ("gpus", learned.gpus),
    ):
        known = db.known.setdefault(kind, {})
        if len(known) + len(found) > limits.DIMENSION_CACHE_MAX:
            known.clear()
        known.update(found)


def find_boot(
    db: Database, connection: Connection, engine: str, boot: Boot, learned: Learned
) -> tuple[int, Boot] | None:
    """The id and the record of the boot with this id that was seen before; the record may be another."""
    known = db.known.get("boots", {}).get((engine, boot)) or learned.boots.get((engine, boot))
    if known is not None:
        return known, boot
    boot_id = boot.boot_id
    row = connection.execute(
        text("SELECT id, anchor_us, started_us FROM boots WHERE engine = :engine AND boot_id = :boot_id"),
        {"engine": engine, "boot_id": boot_id},
    ).one_or_none()
    if row is None:
        return None
    found = Boot(boot_id=boot_id, anchor_us=row[1], started_us=row[2])
    learned.boots[engine, found] = row[0]
    return row[0], found


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
    """Have the key and the rows of ``batch``, whose boot has the id ``boot``, wait to be written."""
    source = _source_id(db, connection, batch.source, learned)
    ids = learned.identities or _ids_of(db, connection, dimensions_in(batch), learned)
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
        hook_text(batch.hook),
    )
    learned.keys.setdefault(tables.batches, []).append(key)
    for table, rows in rows_of(batch, boot, ids):
        if table in _ORDER:
            wait(learned, table, rows)
        else:
            learned.keys.setdefault(table, []).extend(rows)


def wait(learned: Learned, table: Table, rows: list[Row]) -> None:
    """Let rows of one of the large tables wait for :func:`flush`."""
    waiting = learned.rows.setdefault((table, rows[0][0]), rows)
    if waiting is not rows:
        waiting += rows


def intern(db: Database, connection: Connection, batches: Sequence[Batch], learned: Learned) -> None:
    """Intern what several batches of one transaction name, sorted over all: one by one they could deadlock."""
    objects: dict[int, Dimensions] = {}
    for batch in batches:
        objects |= dimensions_in(batch)
    learned.identities |= _ids_of(db, connection, objects, learned)


def flush_keys(connection: Connection, learned: Learned) -> None:
    """Write the keys that wait, and what lives as long as their boots: what is asked before another batch is taken."""
    write_few(connection, list(learned.keys.items()))
    learned.keys.clear()


def flush(connection: Connection, learned: Learned) -> None:
    """Write all that waits, table by table in the order that everybody keeps."""
    flush_keys(connection, learned)
    parts = sorted(learned.rows.items(), key=lambda part: (_ORDER[part[0][0]], part[0][1]))
    write_few(connection, [(table, rows) for (table, _), rows in parts if len(rows) < _COPIED_FROM])
    for (table, _), rows in parts:
        if len(rows) >= _COPIED_FROM:
            write_rows(connection, table, rows)
    learned.rows.clear()


def write_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert tuples in the order of the table's columns, by the fastest way that the database has.

    Goes past SQLAlchemy, which would take as long as the database; :meth:`Database.write` knows the driver's
    errors as well as SQLAlchemy's.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        done = 0
        for size in _TOGETHER:
            for _ in range((len(rows) - done) // size):
                part = rows[done : done + size]
                driver.execute(_insert_together(table, size), tuple(chain.from_iterable(part)))
                done += size
        driver.executemany(_statements(table)[0], rows[done:])
        return
    # Straight into the partition: all rows of a batch are of one day, and nobody need ask for each which.
    name = partition_name(table, rows[0][0]) if table in _ORDER else table.name
    statement = f'COPY "{name}" {_statements(table)[2]} FROM STDIN WITH (FORMAT BINARY)'
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        # In binary form, which takes a third of the time to write here and less to read there.
        copy.set_types(_kinds(table))
        for row in rows:
            copy.write_row(row)


def write_few(connection: Connection, parts: Sequence[tuple[Table, Sequence[Row]]]) -> None:
    """:func:`write_rows` for several tables with few rows each: on PostgreSQL they share one round trip.

    There a table's rows travel as one array a column.
    """
    if connection.dialect.name == "sqlite":
        for table, rows in parts:
            write_rows(connection, table, rows)
        return
    if not parts:
        return
    driver: Any = connection.connection.driver_connection
    with driver.pipeline(), driver.cursor() as cursor:
        for table, rows in parts:
            columns = zip(*rows, strict=True)
            cursor.execute(
                _statements(table)[1],
                [_array(column, kind) for column, kind in zip(columns, _kinds(table), strict=True)],
            )


def _array(column: tuple[Any, ...], kind: str) -> str:
    """One column as the literal of an array."""
    write = _LITERALS[kind]
    inner = ",".join(["NULL" if value is None else write(value) for value in column])
    return f"{{{inner}}}"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _quoted_bytes(value: bytes) -> str:
    return _quoted(f"\\x{value.hex()}")


_LITERALS: Final[dict[str, Callable[[Any], str]]] = {"bigint": str, "bytea": _quoted_bytes, "text": _quoted}


@cache
def _kinds(table: Table) -> tuple[str, ...]:
    kinds = {"TEXT": "text", "BLOB": "bytea"}
    return tuple(kinds.get(str(column.type.compile()), "bigint") for column in table.columns)


@cache
def _insert_together(table: Table, rows: int) -> str:
    """INSERT of several rows, for sqlite3."""
    head, _, marks = _statements(table)[0].partition(" VALUES ")
    return f"{head} VALUES {', '.join([marks] * rows)}"


@cache
def _statements(table: Table) -> tuple[str, str, str]:
    """INSERT as sqlite3 and as :func:`write_few` want it, and the columns in their order."""
    number = len(table.columns)
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    insert = f'INSERT INTO "{table.name}" ({columns})'
    return (
        f"{insert} VALUES ({', '.join('?' * number)})",
        f"{insert} SELECT * FROM unnest({', '.join([f'%s::{kind}[]' for kind in _kinds(table)])})",  # noqa: S608
        f"({columns})",
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
        for table in _PARTITIONED:
            name = partition_name(table, day)
            if connection.execute(text("SELECT to_regclass(:name)"), {"name": name}).scalar_one() is None:
                connection.exec_driver_sql(
                    f'CREATE TABLE "{name}" (LIKE "{table.name}" INCLUDING DEFAULTS INCLUDING INDEXES)'
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
    known = db.known.get("sources", {}).get(source) or learned.sources.get(source)
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


def dimension_ids(db: Database, connection: Connection, wanted: set[Dimensions]) -> dict[Dimensions, int]:
    """The id of each dimension set; those not seen before are interned in this transaction."""
    dims = list(wanted)
    return dict(zip(dims, _numbers(db, connection, list(map(_values, dims)), {}), strict=True))


def _ids_of(db: Database, connection: Connection, objects: dict[int, Dimensions], learned: Learned) -> dict[int, int]:
    """The id of each dimension set, by the identity of its object."""
    # Written out, it takes half as long as by an attrgetter.
    values = [(d.tenant, d.session, d.model, d.adapter, d.scenario, d.priority) for d in objects.values()]
    return dict(zip(objects, _numbers(db, connection, values, learned.dimensions), strict=True))


def _numbers(db: Database, connection: Connection, wanted: list[Values], learned: dict[Values, int]) -> list[int]:
    """The id of each; ``learned``: those of this transaction, which gets the new ones."""
    # One step each: another thread may empty the cache between any two.
    numbers = list(map(db.known.get("dimensions", {}).get, wanted))
    if None not in numbers:
        return cast("list[int]", numbers)
    unknown = {values for values, number in zip(wanted, numbers, strict=True) if number is None}
    missing = sorted(unknown - learned.keys())
    for start in range(0, len(missing), _CHUNK):
        chunk = missing[start : start + _CHUNK]
        found = _look_up(connection, chunk)
        new = [values for values in chunk if values not in found]
        if new:
            _intern(connection, new)
            found |= _look_up(connection, new)
        learned |= found
    return [learned[values] if number is None else number for values, number in zip(wanted, numbers, strict=True)]


def _look_up(connection: Connection, chunk: Sequence[Values]) -> dict[Values, int]:
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    marks = ", ".join([f"({', '.join([mark] * 6)})"] * len(chunk))
    rows = connection.exec_driver_sql(
        f"WITH wanted ({_COLUMNS}) AS (VALUES {marks}) "  # noqa: S608
        f"SELECT d.id, d.tenant, d.session, d.model, d.adapter, d.scenario, d.priority FROM wanted w "
        "JOIN dimensions d ON d.tenant = w.tenant AND d.session = w.session AND d.model = w.model "
        "AND d.adapter = w.adapter AND d.scenario = w.scenario AND d.priority = w.priority",
        tuple(chain.from_iterable(chunk)),
    )
    return {(row[1], row[2], row[3], row[4], row[5], row[6]): row[0] for row in rows}


def _intern(connection: Connection, new: Sequence[Values]) -> None:
    """Insert sorted dimension sets; one that another writer inserts at the same time is waited for."""
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    marks = ", ".join([f"({', '.join([mark] * 6)})"] * len(new))
    connection.exec_driver_sql(
        f"INSERT INTO dimensions ({_COLUMNS}) VALUES {marks} ON CONFLICT DO NOTHING",  # noqa: S608
        tuple(chain.from_iterable(new)),
    )
