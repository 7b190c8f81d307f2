"""Connections, transactions and the one place where a driver's error becomes ours.

Invariants: a session's time zone is UTC; a write transaction of SQLite is IMMEDIATE, so that it never fails
half-way for want of the write lock; a deadlock, a serialization failure or a locked database is tried again
a bounded number of times, from the start of the transaction, and nothing else is.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from ledger import limits
from ledger.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy.pool import ConnectionPoolEntry

    from ledger.core.records import Origin

__all__ = ["Connection", "Database", "ask", "connect", "file_of", "lock", "translated"]

T = TypeVar("T")

RETRIED_SQLSTATES: Final = frozenset({"40001", "40P01", "55P03"})
"""PostgreSQL: serialization failure, deadlock detected, lock not available."""

_WRITE: Final = "kvledger_write"
_FILE: Final = "kvledger_file"


class Database:
    """One database of the ledger. Thread-safe; made by :func:`connect`.

    ``retention_days`` is how long facts are kept. Ids that were interned by committed transactions are
    remembered in :attr:`known`, a plain dict by kind that belongs to :mod:`ledger.store.facts`, as is :attr:`origin`.
    """

    def __init__(self, engine: Engine, *, retention_days: int = limits.RETENTION_DAYS) -> None:
        self.engine = engine
        self.retention_days = retention_days
        self.dialect: Literal["sqlite", "postgresql"] = "sqlite" if engine.dialect.name == "sqlite" else "postgresql"
        self.known: dict[str, dict[Any, int]] = {}
        self.origin: Origin | None = None
        # Bulk writes go past SQLAlchemy, so the driver's own errors arrive here as well.
        self.errors: tuple[type[Exception], ...] = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one write transaction and commit; tried again where another writer was in the way.

        ``work`` may therefore run several times and must have no effect but through its connection. So it is
        where a connection turns out to be dead, unless the commit was on its way: then nobody knows.
        """
        for attempt in range(1, limits.STORE_ATTEMPTS_MAX + 1):
            committing = False
            try:
                with self.engine.connect() as raw:
                    connection = raw.execution_options(**{_WRITE: True})
                    with connection.begin() as transaction:
                        result = work(connection)
                        committing = True
                        transaction.commit()
                        return result
            except self.errors as error:
                again = is_contention(error) or (not committing and is_disconnect(error))
                if not again or attempt == limits.STORE_ATTEMPTS_MAX:
                    raise translated(error, self.engine.url) from error
                time.sleep(min(0.01 * 2**attempt, limits.STORE_BACKOFF_S_MAX) * random.random())  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection on which all statements see one snapshot; nothing can be written through it."""
        try:
            with self.engine.connect() as raw:
                connection = raw
                if self.dialect == "postgresql":
                    connection = raw.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with connection.begin():
                    yield connection
        except self.errors as error:
            raise translated(error, self.engine.url) from error

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()


def connect(url: str, *, retention_days: int = limits.RETENTION_DAYS, durable: bool = True) -> Database:
    """Open the database at ``url`` (``sqlite:///FILE`` or ``postgresql://…``); nothing is created in it yet.

    ``durable=False`` lets the last transactions be lost when the machine (not the process) dies; it is for
    simulations, where a commit that waits for the disk would be most of the time.
    """
    parsed = _parsed(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return Database(_sqlite(parsed, durable=durable), retention_days=retention_days)
    if backend in ("postgresql", "postgres"):
        return Database(_postgresql(parsed, durable=durable), retention_days=retention_days)
    raise UsageError(f"no store for {backend!r} databases; use sqlite:///FILE or postgresql://USER@HOST/NAME")


def file_of(url: str) -> Path | None:
    """The file behind an SQLite URL; None for a server."""
    parsed = _parsed(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:
        raise UsageError(f"not a database URL: {url!r}; use sqlite:///FILE or postgresql://USER@HOST/NAME") from error


def lock(connection: Connection, *names: str) -> None:
    """Keep other writers that lock the same names out until this transaction ends; they are taken in order.

    SQLite has one writer at a time, so there it does nothing.
    """
    if connection.dialect.name == "postgresql" and names:
        connection.execute(
            text(
                "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM (SELECT name FROM "
                "unnest(CAST(:names AS text[])) WITH ORDINALITY AS named (name, place) ORDER BY place) AS sorted"
            ),
            {"names": list(names)},
        )


def ask(connection: Connection, statement: str, questions: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The rows that ``statement`` (values written as ``:name``) has for each of ``questions``, past SQLAlchemy.

    For short statements that are asked for every batch: SQLAlchemy would take several times as long as SQLite, and
    PostgreSQL is asked all of them in one round trip.
    """
    if not questions:
        return []
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        return [driver.execute(statement, question).fetchall() for question in questions]
    with driver.cursor() as cursor:
        cursor.executemany(_for_psycopg(statement), questions, returning=True)
        return [results.fetchall() for results in cursor.results()]


@cache
def _for_psycopg(statement: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement)


def is_contention(error: Exception) -> bool:
    """Whether another writer was in the way, so that the same transaction may succeed when tried again."""
    cause = _cause(error)
    if isinstance(cause, sqlite3.OperationalError):
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(cause, "sqlstate", None) in RETRIED_SQLSTATES


def is_disconnect(error: Exception) -> bool:
    """Whether a connection had died, which is often found out when it is used for the first time again."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _cause(error: Exception) -> BaseException:
    return getattr(error, "orig", None) or error


_WAYS_OUT: Final = (
    ("no such table", "has not got the ledger's tables", "run: kvledger db upgrade"),
    ("UndefinedTable", "has not got the ledger's tables", "run: kvledger db upgrade"),
    (
        "unable to open database file",
        "cannot be opened",
        "see that its folder exists and can be written; one that is only to be read is copied whole, with its -wal",
    ),
    ("not a database", "is not a SQLite file", "name another file, or restore it from a backup"),
    ("malformed", "is damaged", "restore it from a backup"),
    ("disk is full", "has no room left", "free disk space, then run the command again"),
    ("DiskFull", "has no room left", "free disk space, then run the command again"),
    (
        "readonly database",
        "cannot be written",
        "see who owns the file and its folder; or work on a copy, --database names it",
    ),
    ("no partition of relation", "lost the partition of a day while it was written", "deliver the batch again"),
    ("OperationalError", "cannot be reached or stopped answering", "see that it runs and that the URL is right"),
)
"""What a driver says (or the class of its error), what that means, and the way out; the first match counts."""


def translated(error: Exception, url: URL) -> StoreError:
    """Our error for the driver's: what was asked of which database, what it said, and what can be done."""
    shown = url.render_as_string(hide_password=True)
    cause = _cause(error)
    said = " ".join(str(cause).split())
    if is_contention(error):
        return StoreError(
            f"{shown} stayed locked through {limits.STORE_ATTEMPTS_MAX} tries ({said}); "
            "see that no other program holds it, then run the command again"
        )
    known = f"{type(cause).__name__}: {said}"
    for sign, means, way_out in _WAYS_OUT:
        if sign in known:
            return StoreError(f"{shown} {means} ({said}); {way_out}")
    return StoreError(f"{shown} refused a statement ({known}); this is a fault of kvledger: report it")


def _sqlite(url: URL, *, durable: bool) -> Engine:
    wait_s = limits.STORE_BUSY_MS / 1000
    archived = _only_readable(url)
    if archived is None:
        engine = create_engine(url, connect_args={"timeout": wait_s})
    else:
        engine = create_engine(
            url, creator=lambda: sqlite3.connect(archived, uri=True, timeout=wait_s, check_same_thread=False)
        )
    how = ("query_only=ON",) if archived else ("journal_mode=WAL", f"synchronous={'FULL' if durable else 'NORMAL'}")

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # The driver's own BEGIN would come too late (before the first write): ours is sent at `begin` below.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout={limits.STORE_BUSY_MS}",
            *how,
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "wal_autocheckpoint=4000",
            "cache_size=-65536",
        ):
            connection.execute(f"PRAGMA {pragma}")
        record.info[_FILE] = _identity(url)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A file that is deleted or replaced lives on for whoever has it open, and all that is written goes with it.
        if connection.info.get(_FILE) != _identity(url):
            raise StoreError(
                f"{url.render_as_string()} is not the file any more that this process has open: it was deleted, moved "
                "or replaced; stop the process, put the file and its -wal back (or restore a backup), and start again"
            )
        immediate = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _identity(url: URL) -> tuple[int, int] | None:
    """What tells a file from another one of its name; None where there is none, and for a database in memory."""
    try:
        found = Path(url.database or ":memory:").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _only_readable(url: URL) -> str | None:
    """The URI of a file that is there and that we may read only, an archived ledger say; None for any other.

    A file in WAL mode wants two others beside it. Where the log is there, somebody writes, or did: SQLite then reads it
    along, if it can. Where it is not, the file is all there is, and is opened as one that nobody changes.
    """
    file = Path(url.database or "")
    log = file.with_name(file.name + "-wal")
    if not file.is_file() or (os.access(file, os.W_OK) and (log.exists() or os.access(file.parent, os.W_OK))):
        return None
    return f"file:{quote(str(file.resolve()))}?mode=ro" + ("" if log.exists() else "&immutable=1")


def _postgresql(url: URL, *, durable: bool) -> Engine:
    options = f"-c timezone=UTC -c lock_timeout={limits.STORE_BUSY_MS}"
    if not durable:
        options += " -c synchronous_commit=off"
    try:
        return create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args={"options": options, "connect_timeout": limits.STORE_BUSY_MS // 1000},
            pool_size=limits.STORE_POOL_CONNECTIONS,
        )
    except (ImportError, NoSuchModuleError) as error:
        raise UsageError(
            "the PostgreSQL driver is missing; pip install '.[service,postgres]' in a clone of the repository"
        ) from error
