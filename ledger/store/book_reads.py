"""What reports read: sums over the derived tables, never over facts, and what requests of a range used.

Invariant: a sum that may pass 63 bits (block time over engines and months) is taken in two halves and put together
in Python, so that neither SQLite overflows nor PostgreSQL answers with a decimal that somebody rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Connection, Row, Table, and_, func, select

from ledger.store import book_tables as t
from ledger.store import tables as f
from ledger.store.tables import HOLDING_COLUMNS, PREEMPTION_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.core.settlement import Basis

HALF = 2**32

USAGE_COLUMNS = (
    *HOLDING_COLUMNS,
    "cached_block_us",
    "cached_charged_block_us",
    "compute_us",
    "weighted_milliunits",
    *(f"{name}_tokens" for name in TOKEN_COLUMNS),
    *(f"preempted_{name}" for name in PREEMPTION_COLUMNS),
)
"""Columns of ``usage_hours`` that are summed."""

POOL_COLUMNS = (
    "observed_us",
    "active_block_us",
    "cached_block_us",
    "free_block_us",
    "unfilled_slot_us",
    "lookahead_slot_us",
    "held_slot_us",
    "steps",
    "step_us",
)
"""Columns of ``pool_hours`` that are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedLine:
    """A sum on one account; ``month`` is the one it belongs to."""

    month: str
    account: str
    kind: str
    tenant: str
    amount_nanos: int
    asset_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoSum:
    """Waste of one kind of one tenant; the amount is None where no money is put to it."""

    memo: str
    tenant: str
    quantity: int
    amount_nanos: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSum:
    """What a dimension set was charged, by kind."""

    dims: int
    kind: str
    amount_nanos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """Sums of :data:`USAGE_COLUMNS` of one dimension set in one pool."""

    engine: str
    pool: str
    dims: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSum:
    """Sums of :data:`POOL_COLUMNS` of one pool."""

    engine: str
    pool: str
    paying: bool
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """An ended request: its record's totals, and what it used of the paying pool in each period."""

    engine: str
    pool: str
    request: str
    parent: str | None
    dims: int
    outcome: str
    arrived_us: int
    ended_us: int
    values: dict[str, int]
    uses: tuple[tuple[int, int, int], ...]
    """(period's start, active block time, compute time)."""


# --- a month --------------------------------------------------------------------------------------------


def lines_query(booked_month: str, basis: Basis) -> Any:
    """The statement's sums: one pass over the lines of a booked month, by its index."""
    c = t.basis_lines.c
    return (
        select(
            c.month,
            c.account,
            c.kind,
            c.tenant,
            func.sum(c.amount_nanos).label("amount_nanos"),
            func.sum(c.asset_us).label("asset_us"),
        )
        .where(c.booked_month == booked_month, c.basis == basis.value)
        .group_by(c.month, c.account, c.kind, c.tenant)
        .order_by(c.month, c.account, c.kind, c.tenant)
    )


def month_lines(connection: Connection, booked_month: str, basis: Basis) -> list[BookedLine]:
    """All that was booked in a month, by the month that it belongs to and account."""
    return [
        BookedLine(
            month=row.month,
            account=row.account,
            kind=row.kind,
            tenant=row.tenant,
            amount_nanos=int(row.amount_nanos),
            asset_us=None if row.asset_us is None else int(row.asset_us),
        )
        for row in connection.execute(lines_query(booked_month, basis))
    ]


def memos_query(booked_month: str, basis: Basis) -> Any:
    """The statement's memo lines: sums over those of a booked month that belong to it."""
    c = t.memo_lines.c
    return (
        select(c.memo, c.tenant, *_wide(c.quantity), func.sum(c.amount_nanos).label("amount_nanos"))
        .where(c.booked_month == booked_month, c.basis == basis.value, c.month == booked_month)
        .group_by(c.memo, c.tenant)
        .order_by(c.memo, c.tenant)
    )


def month_memos(connection: Connection, booked_month: str, basis: Basis) -> list[MemoSum]:
    """Waste by kind and tenant."""
    return [
        MemoSum(
            memo=row.memo,
            tenant=row.tenant,
            quantity=_put_together(row[2], row[3]),
            amount_nanos=None if row.amount_nanos is None else int(row.amount_nanos),
        )
        for row in connection.execute(memos_query(booked_month, basis))
    ]


def sessions_query(booked_month: str, basis: Basis, tenant: str | None) -> Any:
    """What the sessions of a booked month were charged, adjustments apart."""
    c, d = t.session_costs.c, f.dimensions.c
    query = select(c.dims, c.kind, func.sum(c.amount_nanos).label("amount_nanos")).where(
        c.booked_month == booked_month, c.basis == basis.value, c.month == booked_month
    )
    if tenant is not None:
        query = query.join(f.dimensions, d.id == c.dims).where(d.tenant == tenant)
    return query.group_by(c.dims, c.kind)


def month_sessions(
    connection: Connection, booked_month: str, basis: Basis, tenant: str | None = None
) -> list[SessionSum]:
    """What each dimension set was charged in a month, by kind."""
    return [
        SessionSum(dims=row.dims, kind=row.kind, amount_nanos=int(row.amount_nanos))
        for row in connection.execute(sessions_query(booked_month, basis, tenant))
    ]


# --- a range of whole settled intervals -----------------------------------------------------------------


def usage_sums(connection: Connection, start_us: int, end_us: int) -> list[UsageSum]:
    """Usage by engine, pool and dimension set over the settled intervals that begin in ``[start_us, end_us)``."""
    c = t.usage_hours.c
    query = (
        select(c.engine, c.pool, c.dims, *_wides(t.usage_hours, USAGE_COLUMNS))
        .where(c.start_us >= start_us, c.start_us < end_us)
        .group_by(c.engine, c.pool, c.dims)
    )
    return [
        UsageSum(engine=row.engine, pool=row.pool, dims=row.dims, values=_values(row, 3))
        for row in connection.execute(query)
    ]


def pool_sums(connection: Connection, start_us: int, end_us: int) -> list[PoolSum]:
    """Pool totals over the settled intervals that begin in ``[start_us, end_us)``."""
    c = t.pool_hours.c
    query = (
        select(c.engine, c.pool, func.max(c.paying).label("paying"), *_wides(t.pool_hours, POOL_COLUMNS))
        .where(c.start_us >= start_us, c.start_us < end_us)
        .group_by(c.engine, c.pool)
        .order_by(c.engine, c.pool)
    )
    return [
        PoolSum(engine=row.engine, pool=row.pool, paying=bool(row.paying), values=_values(row, 3))
        for row in connection.execute(query)
    ]


def cost_sums(connection: Connection, start_us: int, end_us: int, basis: Basis) -> list[tuple[str, int, str, int]]:
    """(asset group, dimension id, kind, nanos) over the settled intervals that begin in ``[start_us, end_us)``."""
    c = t.session_costs.c
    query = (
        select(c.asset_group, c.dims, c.kind, func.sum(c.amount_nanos).label("nanos"))
        .where(c.start_us >= start_us, c.start_us < end_us, c.basis == basis.value)
        .group_by(c.asset_group, c.dims, c.kind)
    )
    return [(row.asset_group, row.dims, row.kind, int(row.nanos)) for row in connection.execute(query)]


def hour_costs(
    connection: Connection, start_us: int, end_us: int, basis: Basis
) -> dict[tuple[str, int, int], dict[str, int]]:
    """(asset group, interval, dimension id) to nanos by kind, for dividing among requests."""
    c = t.session_costs.c
    query = (
        select(c.asset_group, c.start_us, c.dims, c.kind, func.sum(c.amount_nanos).label("nanos"))
        .where(c.start_us >= start_us, c.start_us < end_us, c.basis == basis.value)
        .group_by(c.asset_group, c.start_us, c.dims, c.kind)
    )
    found: dict[tuple[str, int, int], dict[str, int]] = {}
    for row in connection.execute(query):
        found.setdefault((row.asset_group, row.start_us, row.dims), {})[row.kind] = int(row.nanos)
    return found


def hour_usage(connection: Connection, start_us: int, end_us: int) -> dict[tuple[str, int, int], tuple[int, int]]:
    """(engine, interval, dimension id) to (active block time, compute time) of the paying pool."""
    u, h = t.usage_hours, t.pool_hours
    query = (
        select(u.c.engine, u.c.start_us, u.c.dims, u.c.active_block_us, u.c.compute_us)
        .join(h, and_(h.c.engine == u.c.engine, h.c.pool == u.c.pool, h.c.start_us == u.c.start_us))
        .where(u.c.start_us >= start_us, u.c.start_us < end_us, h.c.paying == 1)
    )
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    for row in connection.execute(query):  # two rows where a hook spoke for a part of the interval only
        key = (row.engine, row.start_us, row.dims)
        active_us, compute_us = found.get(key, (0, 0))
        found[key] = active_us + row.active_block_us, compute_us + row.compute_us
    return found


def ended_requests(connection: Connection, start_us: int, end_us: int) -> Iterator[RequestRow]:
    """Requests with a record that touch ``[start_us, end_us)``, with their uses in it; facts, so within retention."""
    r, u, b, lost = f.request_records, f.request_uses, f.boots, f.lost_periods
    day = start_us // 86_400_000_000
    uses: dict[tuple[int, int, int, int], list[tuple[int, int, int]]] = {}
    in_range = select(u.c.day, u.c.boot, u.c.seq, u.c.pos, u.c.start_us, u.c.active_block_us, u.c.compute_us).where(
        u.c.day >= day, u.c.start_us >= start_us, u.c.start_us < end_us
    )
    for row in connection.execute(in_range.order_by(u.c.day, u.c.boot, u.c.seq, u.c.pos, u.c.sub)):
        key = (row.day, row.boot, row.seq, row.pos)
        uses.setdefault(key, []).append((row.start_us, row.active_block_us, row.compute_us))
    query = (
        select(r, b.c.engine)
        .join(b, b.c.id == r.c.boot)
        .outerjoin(lost, and_(lost.c.boot == r.c.boot, lost.c.seq == r.c.seq))
        .where(r.c.day >= day, r.c.ended_us > start_us, r.c.arrived_us < end_us, lost.c.seq.is_(None))
        .order_by(b.c.engine, r.c.arrived_us, r.c.request)
    )
    names = [name for name in USAGE_COLUMNS if name in r.c]
    for row in connection.execute(query):
        yield RequestRow(
            engine=row.engine,
            pool=row.pool,
            request=row.request,
            parent=row.parent,
            dims=row.dims,
            outcome=row.outcome,
            arrived_us=row.arrived_us,
            ended_us=row.ended_us,
            values={name: getattr(row, name) for name in names},
            uses=tuple(uses.get((row.day, row.boot, row.seq, row.pos), ())),
        )


def _wide(column: Column[int]) -> tuple[Any, Any]:
    return func.sum(column // HALF), func.sum(column % HALF)


def _wides(table: Table, names: Sequence[str]) -> list[Any]:
    return [half for name in names for half in _wide(table.c[name])]


def _values(row: Row[Any], first: int) -> tuple[int, ...]:
    halves = row[first:]
    return tuple(_put_together(halves[i], halves[i + 1]) for i in range(0, len(halves), 2))


def _put_together(high: Any, low: Any) -> int:
    return int(high or 0) * HALF + int(low or 0)
