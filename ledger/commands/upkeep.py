"""The database's schema, and the batches that were refused."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ledger import ingest
from ledger.cli import FOUND, OK, settings_of
from ledger.commands.opening import Ledger, connected, make_folder, now_us, opened
from ledger.errors import UsageError
from ledger.reports.render import Column, Shape, Sheet, show
from ledger.store import migrate, quarantine
from ledger.store.database import file_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator


def db_upgrade(args: Namespace) -> int:
    """Make the tables or bring them up to date."""
    settings = settings_of(args)
    make_folder(settings.database)
    with connected(settings) as ledger:
        before, after = migrate.upgrade(ledger.database)
    state = f"was at {before or 'nothing'}, is at {after}" if before != after else f"is at {after} already"
    print(f"{ledger.name} {state}")
    return OK


@contextmanager
def _looked_at(args: Namespace) -> Iterator[Ledger]:
    """The database whatever its version; but looking at it does not make it."""
    settings = settings_of(args)
    file = file_of(settings.database)
    if file is not None and not file.is_file():
        raise UsageError(f"there is no ledger at {file}; `kvledger db upgrade` makes one, --database names another")
    with connected(settings) as ledger:
        yield ledger


def db_current(args: Namespace) -> int:
    """The schema's version, and the newest."""
    with _looked_at(args) as ledger:
        print(f"{ledger.name} is at {migrate.current(ledger.database) or 'nothing'}, the newest is {migrate.head()}")
    return OK


def db_check(args: Namespace) -> int:
    """Every difference between the schema and what this version declares."""
    with _looked_at(args) as ledger:
        differences = migrate.check(ledger.database)
    for difference in differences:
        print(difference)
    if not differences:
        print(f"{ledger.name} is as this version wants it")
    return FOUND if differences else OK


def quarantine_list(args: Namespace) -> int:
    """What was refused."""
    with opened(args) as ledger, ledger.database.read() as connection:
        entries = quarantine.entries(connection)
    columns = (
        Column(key="id", title="id", shape=Shape.TEXT),
        Column(key="received_us", title="received", shape=Shape.TIME, spare=2),
        Column(key="engine", title="engine", name=True),
        Column(key="boot_id"),
        Column(key="seq", title="seq", shape=Shape.COUNT),
        Column(key="reason", title="reason"),
        Column(key="bytes", title="bytes", shape=Shape.COUNT, spare=3),
        Column(key="detail", title="why", sentence=True),
    )
    rows = [(e.id, e.received_us, e.engine, e.boot_id, e.seq, e.reason, e.size_bytes, e.detail) for e in entries]
    show(Sheet(columns=columns, rows=rows, empty="nothing was refused"), args.format, sys.stdout)
    return OK


def quarantine_show(args: Namespace) -> int:
    """One refused batch: why on standard error, its bytes as they came on standard output."""
    with opened(args) as ledger, ledger.database.read() as connection:
        found = quarantine.entry(connection, args.id)
    if found is None:
        raise UsageError(f"no entry {args.id} in quarantine; `kvledger quarantine list` shows what there is")
    entry, raw = found
    print(f"{entry.reason}: {entry.detail}", file=sys.stderr)
    sys.stdout.write(raw.decode("utf-8", errors="backslashreplace") + "\n")
    return OK


def quarantine_retry(args: Namespace) -> int:
    """Try refused batches again, oldest first."""
    with opened(args) as ledger:
        with ledger.database.read() as connection:
            numbers = [args.id] if args.id else [entry.id for entry in quarantine.entries(connection)]
        refused = 0
        for number in numbers:
            outcome = ingest.retry(ledger.database, number, now_us())
            refused += outcome.refusal is not None
            why = f": {outcome.refusal.reason}: {outcome.refusal.detail}" if outcome.refusal else ""
            print(f"{number} {outcome.status}{why}")
    print(f"{len(numbers) - refused} taken, {refused} still refused" if numbers else "nothing was refused")
    return FOUND if refused else OK
