"""What people ask the books: usage by whatever, and the statement of a month."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ledger.commands.opening import clock_us, now_us, opened
from ledger.core.periods import format_time, period_end, period_start
from ledger.core.settlement import Basis
from ledger.errors import UsageError
from ledger.reports.bill import csv_of, show_bill
from ledger.reports.monthly import booked_months, empty_statement, read_statement
from ledger.reports.render import ABSENT, Column, Shape, Sheet, json_text, show
from ledger.reports.statement import as_value, of_tenant
from ledger.reports.usage import KEYS, By, columns
from ledger.reports.usage import usage as read_usage
from ledger.store import inputs
from ledger.store.terms import LedgerTerms, find_terms

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ledger.commands.opening import Ledger
    from ledger.core.periods import Month
    from ledger.reports.statement import Statement
    from ledger.reports.usage_rows import UsageRow

NO_FACTS = "there are no facts yet; `kvledger replay` brings some"

SHAPES = {
    "_block_us": Shape.BLOCK_TIME,
    "_slot_us": Shape.BLOCK_TIME,
    "_nanos": Shape.MONEY,
    "_milliunits": Shape.MILLI,
    "_tokens": Shape.COUNT,
    "_us": Shape.DURATION,
}
"""The unit that a figure's name ends in, and how it reads."""

TITLES = {
    "active_block_us": "active bh",
    "cached_block_us": "cached bh",
    "free_block_us": "free bh",
    "capacity_block_us": "capacity bh",
    "compute_us": "compute",
    "active_nanos": "active cost",
    "cached_nanos": "cached cost",
    "output_tokens": "output",
}
"""Figures that a table has room for; JSON and CSV have all."""

TENANTS_NAMED = 12
"""So many names fit in a line that is still read."""

SPARE = {
    "engine": 9,
    "outcome": 8,
    "session": 1,
    "output_tokens": 5,
    "compute_us": 4,
    "capacity_block_us": 3,
    "free_block_us": 2,
}
"""What a narrow table goes without, the highest first; only requests go without a part of their name."""


def usage(args: Namespace) -> int:
    """Usage over a range, by whatever was asked."""
    by = By(args.by)
    with opened(args) as ledger:
        with ledger.database.read() as connection:
            first_us, last_us = inputs.first_fact_us(connection), inputs.last_fact_us(connection)
        rows: tuple[UsageRow, ...] = ()
        if first_us is not None and last_us is not None:
            start_us = period_start(first_us) if args.start is None else args.start
            end_us = period_end(last_us) if args.end is None else args.end
            if start_us < end_us:
                at_us = max(now_us(), end_us)
                rows = read_usage(ledger.database, start_us=start_us, end_us=end_us, by=by, now_us=at_us)
            elif args.start is not None or args.end is not None:
                # Without either the ledger is one whose engines have announced themselves, and have no period yet.
                raise UsageError(
                    f"{_empty_range(args)}; facts lie from {format_time(first_us)} to {format_time(last_us)}"
                )
        currency = ledger.settings.currency
    keys = columns(by)
    empty = NO_FACTS if first_us is None else "nothing was used in that time; --from and --to say which"
    sheet = Sheet(
        columns=tuple(_column(key, by) for key in keys),
        rows=[tuple(getattr(row, key) for key in keys) for row in rows],
        empty=empty,
        rounded=f"bh: block-hours. {currency} to 4 places. Every figure, exact: --format json or csv.",
    )
    show(sheet, args.format, sys.stdout, top=args.top)
    return 0


def report(args: Namespace) -> int:
    """The statement of a month; of nothing, where there is nothing."""
    basis = None if args.basis is None else Basis(args.basis)
    with opened(args) as ledger:
        whole, months = _whole(ledger, None if args.month is None else str(args.month), basis)
    missing = _missing(whole, args.tenant, months)
    statement = whole if args.tenant is None else of_tenant(whole, args.tenant)
    if args.format == "json":
        print(json_text(as_value(statement)))
    elif args.format == "csv":
        sys.stdout.write(csv_of(statement))
    elif missing is None:
        show_bill(statement, sys.stdout)
    if missing is not None:
        # For a person this is the answer; a program has its answer already.
        print(missing, file=sys.stdout if args.format == "table" else sys.stderr)
    return 0


def _whole(ledger: Ledger, month: str | None, basis: Basis | None) -> tuple[Statement, Sequence[Month]]:
    """The statement asked for, and the months that have bookings.

    Without a month it is the last one with bookings; where there is none, the one in which the ledger's time stands.
    """
    with ledger.database.read() as connection:
        known = find_terms(connection)
    if known is None:
        settings = ledger.settings
        new = LedgerTerms.of_new(
            currency=settings.currency, zone_name=settings.billing_timezone, terms=settings.terms()
        )
        return empty_statement(month or new.month(now_us()), new, basis), ()
    months = booked_months(ledger.database)
    wanted = month or (str(months[-1]) if months else known.month(clock_us(ledger) - 1))
    return read_statement(ledger.database, wanted, now_us=now_us(), basis=basis), months


def _missing(whole: Statement, tenant: str | None, months: Sequence[Month]) -> str | None:
    """One line where there is nothing to state, with what there is instead; None where there is something."""
    if not whole.lines and whole.month not in map(str, months):
        if not months:
            return f"nothing is booked in {whole.month}, nor in any month; `kvledger settle` books what is over"
        there = f"{months[0]}" if len(months) == 1 else f"{months[0]} to {months[-1]}"
        return f"nothing is booked in {whole.month}; there are bookings in {there}"
    tenants = sorted({line.tenant for line in whole.lines if line.tenant})
    elsewhere = {memo.tenant for memo in whole.memos} | {a.tenant for a in whole.adjustments}
    if tenant is None or tenant in tenants or tenant in elsewhere:
        return None
    if not tenants:
        return f"nothing is booked on {tenant} in {whole.month}, nor on any tenant"
    more = f" and {len(tenants) - TENANTS_NAMED:,} more" if len(tenants) > TENANTS_NAMED else ""
    return (
        f"nothing is booked on {tenant} in {whole.month}; there are bookings on "
        f"{', '.join(tenants[:TENANTS_NAMED])}{more}"
    )


def _empty_range(args: Namespace) -> str:
    """Why a range has no length, in terms of what was given."""
    if args.end is None:
        return f"--from {format_time(args.start)} does not lie before the last fact"
    if args.start is None:
        return f"--to {format_time(args.end)} does not lie after the first fact"
    return f"the range from {format_time(args.start)} to {format_time(args.end)} has no length: mend --from or --to"


def _column(key: str, by: By) -> Column:
    if key in KEYS[by]:
        spare = SPARE.get(key, 0) if by is By.REQUEST else 0
        return Column(key=key, title=key, spare=spare, name=True, absent="(the rest)", blank=ABSENT)
    shape = next(shape for ending, shape in SHAPES.items() if key.endswith(ending))
    return Column(key=key, title=TITLES.get(key, ""), shape=shape, summed=True, spare=SPARE.get(key, 0))
