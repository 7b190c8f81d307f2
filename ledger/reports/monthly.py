"""The statement of a month, read out of the books: closed, open, or open with the hour that is not settled yet.

Invariant: a closed month is read from what was written when it closed, never computed again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.periods import month_after, months_between
from ledger.reports.statement import Heading, from_value, make_statement, of_tenant
from ledger.settle import Provisional, booked_statement, provisional, still_open
from ledger.store import book_reads, books, inputs, terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.periods import Month
    from ledger.core.records import Dimensions
    from ledger.core.settlement import Basis
    from ledger.reports.statement import Statement
    from ledger.store.database import Connection, Database


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLine:
    """What a session was charged in a month, by kind; a tenant's sum to its line of that kind."""

    dims: Dimensions
    kind: str
    amount_nanos: int


def read_statement(
    db: Database,
    month: str,
    *,
    now_us: int,
    tenant: str | None = None,
    basis: Basis | None = None,
    known: Sequence[Provisional] = (),
) -> Statement:
    """The statement of ``month`` (``YYYY-MM``); ``basis`` is the booked one where none is given.

    Where the month is not settled to its end, what is known of the rest goes along, provisionally. ``known``: what was
    worked out of it a while ago; it will do as long as nothing is settled since.
    """
    with db.read() as snapshot:
        closed = _closed(snapshot, month, basis)
        ledger = terms.read_terms(snapshot)
        settled_us = books.settled_until(snapshot)
    if closed is None:
        wanted = basis or ledger.terms(month).basis
        rest = [part for part in still_open(known, settled_us) if part.month == month]
        rest = rest or [*provisional(db, now_us=now_us, month=month)]
        with db.read() as snapshot:
            statement = booked_statement(
                snapshot,
                ledger,
                month,
                wanted,
                provisional_from_us=min((part.from_us for part in rest if part.settlements), default=None),
                open_time=tuple(made for part in rest for made in part.settlements),
            )
    else:
        statement = closed
    return statement if tenant is None else of_tenant(statement, tenant)


def empty_statement(month: str, ledger: terms.LedgerTerms, basis: Basis | None = None) -> Statement:
    """The statement of a month in which nothing is."""
    holds = ledger.terms(month)
    heading = Heading(
        month=month,
        timezone=ledger.zone_name,
        currency=ledger.currency,
        basis=basis or holds.basis,
        kv_share_ppm=holds.kv_share_ppm,
    )
    return make_statement(heading, booked=(), memos=(), pools=())


def read_sessions(
    db: Database, month: str, *, now_us: int, tenant: str | None = None, basis: Basis | None = None
) -> tuple[SessionLine, ...]:
    """The sessions behind :func:`read_statement`, dearest first; they sum to its tenants' lines."""
    with db.read() as snapshot:
        ledger = terms.read_terms(snapshot)
        wanted = basis or ledger.terms(month).basis
        is_closed = books.statement_row(snapshot, month) is not None
        sums = book_reads.month_sessions(snapshot, month, wanted, tenant)
        dims = inputs.PeriodReader(snapshot).dimensions(row.dims for row in sums)
        costs = {(dims[row.dims], row.kind): row.amount_nanos for row in sums}
    for part in () if is_closed else provisional(db, now_us=now_us, month=month):
        for made in part.settlements:
            for of, cost in made.session_costs():
                if of is wanted and tenant in (None, cost.dims.tenant):
                    key = (cost.dims, cost.kind.value)
                    costs[key] = costs.get(key, 0) + cost.amount_nanos
    return tuple(
        SessionLine(dims=key[0], kind=key[1], amount_nanos=nanos)
        for key, nanos in sorted(costs.items(), key=lambda item: (-item[1], item[0]))
        if nanos
    )


def last_month(db: Database) -> str | None:
    """The latest month with a booking; None for an empty journal."""
    months = booked_months(db)
    return str(months[-1]) if months else None


def booked_months(db: Database) -> tuple[Month, ...]:
    """Every month from the first booking to the last."""
    with db.read() as snapshot:
        start_us, end_us = books.settled_from(snapshot), books.settled_until(snapshot)
        if start_us is None or end_us is None:
            return ()
        return tuple(months_between(start_us, end_us, terms.read_terms(snapshot).zone))


def listed_months(db: Database) -> tuple[str, ...]:
    """Every month that is booked or closed, and the one after the last where that is closed: adjustments go there."""
    between = booked_months(db)
    with db.read() as snapshot:
        last = books.last_closed(snapshot)
        closed = books.closed_months(snapshot)
    months = {*map(str, between), *closed}
    if last is not None and last == max(months):
        months.add(month_after(last))
    return tuple(sorted(months))


def _closed(snapshot: Connection, month: str, basis: Basis | None) -> Statement | None:
    row = books.statement_row(snapshot, month)
    if row is None:
        return None
    wanted = row.basis if basis is None else basis.value
    return from_value(json.loads(row.body)[wanted], digest=row.digest)
