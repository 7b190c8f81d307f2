"""The books: settling, months, and the audit of everything that is stored."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ledger.audit import audit as breaches_of
from ledger.cli import FOUND, OK
from ledger.commands.opening import clock_us, fit_terms, now_us, opened
from ledger.reports.monthly import listed_months, read_statement
from ledger.reports.render import Column, Shape, Sheet, counted, show
from ledger.settle import close_month
from ledger.settle import settle as settle_all

if TYPE_CHECKING:
    from argparse import Namespace


def settle(args: Namespace) -> int:
    """Book what is over, and again what has changed."""
    with opened(args) as ledger:
        ledger.database.write(lambda connection: fit_terms(connection, ledger.settings, at_us=now_us()))
        at_us = clock_us(ledger)
        done = settle_all(ledger.database, until_us=at_us, now_us=at_us)
    print(
        f"{counted(done.booked, 'interval')} booked, {done.revised:,} booked again, {done.unchanged:,} as before, "
        f"{counted(done.findings, 'new finding')}"
    )
    return OK


def month_close(args: Namespace) -> int:
    """Freeze a month."""
    month = str(args.month)
    with opened(args) as ledger:
        at_us = clock_us(ledger)
        new = close_month(ledger.database, month, now_us=at_us)
        statement = read_statement(ledger.database, month, now_us=at_us)
    print(f"{month} is closed{'' if new else ' already'}, its digest is {statement.digest}")
    return OK


def month_list(args: Namespace) -> int:
    """Every month that has bookings or is closed."""
    rows = []
    with opened(args) as ledger:
        for month in listed_months(ledger.database):
            statement = read_statement(ledger.database, str(month), now_us=now_us())
            rows.append(
                (
                    statement.month,
                    "closed" if statement.digest else "open",
                    statement.bill_nanos,
                    sum(a.amount_nanos for a in statement.adjustments),
                    statement.currency,
                    statement.digest or None,
                )
            )
    columns = (
        Column(key="month", title="month"),
        Column(key="state", title="state"),
        Column(key="bill_nanos", title="bill", shape=Shape.MONEY),
        Column(key="adjustments_nanos", title="adjustments", shape=Shape.MONEY),
        Column(key="currency", title="currency"),
        Column(key="digest"),
    )
    empty = "no month has bookings yet; `kvledger settle` books what is over"
    show(Sheet(columns=columns, rows=rows, empty=empty), args.format, sys.stdout)
    return OK


def audit(args: Namespace) -> int:
    """Every law on what is stored."""
    with opened(args) as ledger:
        breaches = breaches_of(ledger.database)
        name = ledger.name
    for breach in breaches:
        print(breach)
    told = counted(len(breaches), "breach", "breaches") if breaches else "every law holds"
    print(f"{name}: {told}", file=sys.stderr)
    return FOUND if breaches else OK
