"""What was booked over time: the lines of settled intervals, by interval, and the months that there are.

Invariant: sums over all rows of an interval, whichever month booked them: what is known now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from ledger.store import book_tables as t

if TYPE_CHECKING:
    from ledger.core.settlement import Basis
    from ledger.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """An amount of the settled interval that begins at ``start_us``; ``asset_group`` is not told apart."""

    start_us: int
    account: str
    kind: str
    tenant: str
    amount_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedMonth:
    """A month with bookings; digest and time are None while it is open."""

    month: str
    digest: str | None
    closed_us: int | None


def cost_lines(connection: Connection, start_us: int, end_us: int, basis: Basis) -> list[CostLine]:
    """The lines of the settled intervals that begin in ``[start_us, end_us)``, in order of time and account."""
    c = t.basis_lines.c
    query = (
        select(c.start_us, c.account, c.kind, c.tenant, func.sum(c.amount_nanos).label("nanos"))
        .where(c.start_us >= start_us, c.start_us < end_us, c.basis == basis.value)
        .group_by(c.start_us, c.account, c.kind, c.tenant)
        .order_by(c.start_us, c.account, c.kind, c.tenant)
    )
    return [
        CostLine(
            start_us=row.start_us, account=row.account, kind=row.kind, tenant=row.tenant, amount_nanos=int(row.nanos)
        )
        for row in connection.execute(query)
    ]


def booked_months(connection: Connection) -> list[BookedMonth]:
    """Every month that has bookings, the newest first."""
    s = t.statements.c
    closed = {row.month: row for row in connection.execute(select(s.month, s.digest, s.closed_us))}
    months = set(connection.execute(select(t.transactions.c.month).distinct()).scalars()) | closed.keys()
    return [
        BookedMonth(
            month=month,
            digest=closed[month].digest if month in closed else None,
            closed_us=closed[month].closed_us if month in closed else None,
        )
        for month in sorted(months, reverse=True)
    ]
