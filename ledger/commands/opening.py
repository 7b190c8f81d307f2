"""Opening the ledger that a command works on, with the way out where it cannot be opened.

Invariant: a command never makes a database by looking at it: a SQLite file that is not there is an error, except
for those commands whose business is to make one.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.cli import settings_of
from ledger.config import Settings, masked
from ledger.core.periods import settle_interval
from ledger.errors import StoreError, UsageError
from ledger.store import inputs, migrate
from ledger.store.database import Database, connect, file_of
from ledger.store.terms import ensure_terms, find_terms, read_terms

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from ledger.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """An open ledger of this version, and the settings it was opened with."""

    settings: Settings
    database: Database

    @property
    def name(self) -> str:
        """What a person calls it; without a password."""
        return masked(self.settings.database)


def now_us() -> int:
    """The system clock, in microseconds since 1970."""
    return time.time_ns() // 1000


def clock_us(ledger: Ledger) -> int:
    """Up to when this ledger's time is over: now, or where a replay's virtual clock stopped, if that lies ahead."""
    with ledger.database.read() as connection:
        last_us = inputs.last_fact_us(connection)
        interval_us = read_terms(connection).interval_us
    now = now_us()
    return now if last_us is None or last_us <= now else settle_interval(last_us - 1, interval_us).end_us


def open_books(ledger: Ledger) -> None:
    """Write currency, zone and terms of the settings where the ledger has none: before facts that others ask about."""

    def work(connection: Connection) -> None:
        if find_terms(connection) is None:
            fit_terms(connection, ledger.settings, at_us=now_us())

    ledger.database.write(work)


def fit_terms(connection: Connection, settings: Settings, *, at_us: int) -> None:
    """Write currency, zone and terms of the settings, or see that they fit: :func:`ledger.store.terms.ensure_terms`."""
    ensure_terms(
        connection,
        currency=settings.currency,
        zone_name=settings.billing_timezone,
        terms=settings.terms(),
        now_us=at_us,
    )


@contextmanager
def opened(args: Namespace) -> Iterator[Ledger]:
    """The ledger of the arguments; an error with the way out if it is not there or of another version."""
    settings = settings_of(args)
    file = file_of(settings.database)
    if file is not None and not file.is_file():
        raise UsageError(
            f"there is no ledger at {file}; `kvledger serve` makes it and takes what engines send, "
            "`kvledger db upgrade` makes an empty one, `kvledger replay` and `kvledger demo` one with something in it, "
            "--database names another"
        )
    with connected(settings) as ledger:
        check_version(ledger)
        yield ledger


@contextmanager
def opened_or_made(settings: Settings, *, durable: bool = True) -> Iterator[Ledger]:
    """The ledger of the settings; an empty or missing database gets its tables first."""
    make_folder(settings.database)
    with connected(settings, durable=durable) as ledger:
        if migrate.current(ledger.database) is None:
            migrate.upgrade(ledger.database)
        check_version(ledger)
        yield ledger


@contextmanager
def connected(settings: Settings, *, durable: bool = True) -> Iterator[Ledger]:
    """The database of the settings, whatever is in it; closed at the end."""
    database = connect(settings.database, retention_days=settings.fact_retention_days, durable=durable)
    try:
        yield Ledger(settings=settings, database=database)
    finally:
        database.close()


def check_version(ledger: Ledger) -> None:
    """A ledger of another version is an error, never a guess."""
    at, newest = migrate.current(ledger.database), migrate.head()
    if at != newest:
        raise StoreError(
            f"{ledger.name} has schema {at or 'none'} and this version wants {newest}; "
            "`kvledger db upgrade` brings it up to date (a newer one wants a newer kvledger)"
        )


def make_folder(url: str) -> None:
    """Make the folder in which an SQLite file will lie."""
    file = file_of(url)
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{file.parent} cannot be made: {error.strerror}; name another place with --state-dir or --database"
            ) from error
