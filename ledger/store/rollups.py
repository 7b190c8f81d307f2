"""Roll-ups: the rows that are kept beside the journal, so that no report of settled time reads a fact.

Invariants: they follow from a settlement alone and can be made again; rows of money that belong to a booked month are
the difference to what was booked before, so that their sum is what is known and a closed month's rows never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, and_, func, select

from ledger.store import book_tables as t
from ledger.store.facts import dimension_ids, write_rows
from ledger.store.tables import HOLDING_COLUMNS, PREEMPTION_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.records import Dimensions
    from ledger.core.settlement import SessionUsage
    from ledger.store.books import Memo, PoolRollup, Settlement
    from ledger.store.database import Database

Rows = dict[tuple[Any, ...], tuple[int | None, ...]]
"""Keys (without the place) to values, in the order of the table's columns."""


def line_rows(made: Settlement) -> Rows:
    """What ``basis_lines`` says of a settlement: (basis, account, kind, tenant) to (nanos, asset time)."""
    rows: Rows = {}
    for basis, line in made.lines():
        key = (basis.value, line.account.value, line.kind.value, line.tenant)
        _add(rows, key, (line.amount_nanos, line.asset_us))
    return rows


def cost_rows(made: Settlement) -> Rows:
    """What ``session_costs`` says of a settlement: (basis, dimension set, kind) to (nanos,)."""
    rows: Rows = {}
    for basis, cost in made.session_costs():
        if cost.amount_nanos:
            _add(rows, (basis.value, cost.dims, cost.kind.value), (cost.amount_nanos,))
    return rows


def memo_rows(memos: Iterable[Memo]) -> Rows:
    """What ``memo_lines`` says of a settlement: (interval of use, basis, tenant, memo) to (quantity, nanos)."""
    rows: Rows = {}
    for memo in memos:
        _add(rows, (memo.use_start_us, memo.basis.value, memo.tenant, memo.memo), (memo.quantity, memo.amount_nanos))
    return rows


def _add(rows: Rows, key: tuple[Any, ...], values: tuple[int | None, ...]) -> None:
    """Add to the values under a key; absent and absent stay absent."""
    known = rows.get(key)
    rows[key] = (
        values if known is None else tuple(a if b is None else (a or 0) + b for a, b in zip(known, values, strict=True))
    )


def save_derived(db: Database, connection: Connection, made: Settlement) -> None:
    """Write what is derived from a settlement, in place of what was there."""
    place = (made.asset_group, made.start_us, made.booked_month, made.month)
    _save_money(connection, t.basis_lines, place, line_rows(made))
    costs = cost_rows(made)
    dims = {key[1] for key in costs} | {usage.dims for pool in made.pools for usage in pool.sessions}
    ids = dimension_ids(db, connection, dims)
    by_number = {(basis, ids[of], kind): values for (basis, of, kind), values in costs.items()}
    _save_money(connection, t.session_costs, place, by_number)
    save_memos(connection, place, made.memos)
    s = t.segments
    connection.execute(s.delete().where(s.c.asset_group == made.asset_group, s.c.interval_us == made.start_us))
    if segments := segment_rows(made):
        write_rows(connection, s, segments)
    if made.engine is not None:
        _save_usage(connection, made.engine, made, ids)


def save_memos(connection: Connection, place: tuple[str, int, str, str], memos: Iterable[Memo]) -> None:
    """Write the memo lines of the interval ``(asset group, start, booked month, month)``."""
    _save_money(connection, t.memo_lines, place, memo_rows(memos))


def _save_money(connection: Connection, table: Table, place: tuple[str, int, str, str], rows: Rows) -> None:
    """Write ``rows`` less what other months have booked of the interval already.

    The key's columns are the table's primary key without the place, in the table's order; then comes ``month``.
    """
    asset_group, start_us, booked_month, month = place
    keys = [c for c in table.primary_key.columns if c.name not in ("asset_group", "start_us", "booked_month")]
    values = [c for c in table.columns if not c.primary_key and c.name != "month"]
    here = and_(table.c.asset_group == asset_group, table.c.start_us == start_us)
    connection.execute(table.delete().where(here, table.c.booked_month == booked_month))
    booked = {
        tuple(row[: len(keys)]): tuple(row[len(keys) :])
        for row in connection.execute(select(*keys, *(func.sum(c) for c in values)).where(here).group_by(*keys))
    }
    written = []
    for key in sorted({*rows, *booked}):
        new, old = rows.get(key), booked.get(key)
        if old is not None:
            new = tuple(
                None if a is None and b is None else (a or 0) - int(b or 0)
                for a, b in zip(new or (None,) * len(values), old, strict=True)
            )
            if not any(new):
                continue
        assert new is not None
        named = dict(zip((c.name for c in keys), key, strict=True)) | dict(
            zip((c.name for c in values), new, strict=True)
        )
        named |= {"asset_group": asset_group, "start_us": start_us, "booked_month": booked_month, "month": month}
        written.append(tuple(named[c.name] for c in table.columns))
    if written:
        write_rows(connection, table, written)


def segment_rows(made: Settlement) -> list[tuple[Any, ...]]:
    """The rows of ``segments``, in the order of its columns."""
    return [
        (
            made.asset_group,
            segment.start_us,
            made.start_us,
            segment.end_us,
            segment.blocks,
            segment.bill_nanos,
            segment.observed_us,
            segment.kv_nanos,
            segment.compute_nanos,
            segment.step_us,
            str(segment.weighted_block_us),
        )
        for segment in made.allocation.segments
    ]


def _save_usage(connection: Connection, engine: str, made: Settlement, ids: Mapping[Dimensions, int]) -> None:
    for table in (t.pool_hours, t.usage_hours):
        connection.execute(table.delete().where(table.c.engine == engine, table.c.start_us == made.start_us))
    hours = [pool_hour(engine, made.start_us, made.end_us, pool) for pool in made.pools]
    if hours:
        write_rows(connection, t.pool_hours, hours)
    sessions = [
        usage_hour(engine, pool.pool, made.start_us, ids[usage.dims], usage)
        for pool in made.pools
        for usage in pool.sessions
    ]
    if sessions:
        write_rows(connection, t.usage_hours, sessions)


POOL_HOUR = tuple(column.name for column in t.pool_hours.columns)
"""The columns of ``pool_hours``, in their order."""


def pool_hour(engine: str, start_us: int, end_us: int, pool: PoolRollup) -> tuple[Any, ...]:
    """A row of ``pool_hours``, in the order of its columns."""
    return (engine, pool.pool, start_us, end_us, int(pool.paying), *pool.values())


USAGE_HOUR = tuple(column.name for column in t.usage_hours.columns)
"""The columns of ``usage_hours``, in their order."""


def usage_hour(engine: str, pool: str, start_us: int, dims: int, usage: SessionUsage) -> tuple[Any, ...]:
    """A row of ``usage_hours``, in the order of its columns."""
    row = usage.row
    return (
        engine,
        pool,
        start_us,
        dims,
        *(getattr(row.holding, name) for name in HOLDING_COLUMNS),
        row.cached_block_us,
        usage.cached_charged_block_us,
        row.cached_blocks_end,
        row.compute_us,
        usage.weighted_milliunits,
        *(getattr(row.tokens, name) for name in TOKEN_COLUMNS),
        *(getattr(row.preemptions, name) for name in PREEMPTION_COLUMNS),
    )
