"""The journal, and what is kept beside it: one settlement is written in one transaction, or not at all.

Invariants: the postings of a transaction sum to zero; revision n+1 undoes revision n and books anew; the rows of
money that belong to a booked month are the difference to what was booked before, so that their sum is what is known
and a closed month's rows never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, and_, func, select

from ledger.core.journal import FIRST_REVISION, Posting, Side, Transaction, postings_of, reversal_of, transaction_id
from ledger.core.settlement import Allocation, Basis, Kind, Line, SegmentTerms, SessionCost
from ledger.store import book_tables as t
from ledger.store import rollups
from ledger.store.facts import write_rows
from ledger.store.rows import row_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.settlement import PoolUsage, SessionUsage
    from ledger.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A transaction without its postings."""

    transaction_id: str
    asset_group: str
    start_us: int
    end_us: int
    revision: int
    month: str
    booked_month: str
    currency: str
    bill_nanos: int
    batches: int
    frame_digest: str
    inputs_digest: str
    reverses: str | None
    booked_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """Waste of one kind: ``amount_nanos`` is None where there is a quantity and no money to it."""

    memo: str
    basis: Basis
    tenant: str
    use_start_us: int
    quantity: int
    amount_nanos: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRollup:
    """What one pool of an engine, and each session in it, used over the interval."""

    pool: str
    paying: bool
    usage: PoolUsage
    sessions: tuple[SessionUsage, ...]

    def values(self) -> tuple[int, ...]:
        """The sums of the pool's periods, in the order of the columns of ``pool_hours`` from ``observed_us`` on."""
        totals = self.usage.totals
        return (
            self.usage.observed_us,
            totals.active_block_us,
            totals.cached_block_us,
            totals.free_block_us,
            totals.unfilled_slot_us,
            totals.lookahead_slot_us,
            totals.held_slot_us,
            totals.steps,
            totals.step_us,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A settled interval of one asset group, ready to be written. ``engine`` is None for an asset by itself."""

    asset_group: str
    engine: str | None
    start_us: int
    end_us: int
    month: str
    booked_month: str
    booked_us: int
    currency: str
    batches: int
    frame_digest: str
    inputs_digest: str
    booked_basis: Basis
    allocation: Allocation
    memos: tuple[Memo, ...]
    notes: tuple[str, ...]
    """Findings, as ``code: sentence``."""
    asked: tuple[tuple[int, str | None], ...]
    """Earlier intervals whose stored figures the memo lines are made of, and the transactions that had booked them."""
    pools: tuple[PoolRollup, ...]

    def lines(self) -> Iterable[tuple[Basis, Line]]:
        """The lines under both bases."""
        other = Basis.FULL if self.booked_basis is Basis.CAPACITY else Basis.CAPACITY
        yield from ((self.booked_basis, line) for line in self.allocation.lines)
        yield from ((other, line) for line in self.allocation.other_lines)

    def session_costs(self) -> Iterable[tuple[Basis, SessionCost]]:
        """The sessions' costs under both bases."""
        other = Basis.FULL if self.booked_basis is Basis.CAPACITY else Basis.CAPACITY
        yield from ((self.booked_basis, cost) for cost in self.allocation.session_costs)
        yield from ((other, cost) for cost in self.allocation.other_session_costs)


# --- the journal ----------------------------------------------------------------------------------------


def heads(
    connection: Connection, start_us: int, end_us: int, *, asset_group: str | None = None
) -> dict[tuple[str, int], Head]:
    """The newest transaction of each interval that begins in ``[start_us, end_us)``."""
    columns = t.transactions.c
    query = select(*(columns[name] for name in Head.__slots__)).where(
        columns.start_us >= start_us, columns.start_us < end_us
    )
    if asset_group is not None:
        query = query.where(columns.asset_group == asset_group)
    found: dict[tuple[str, int], Head] = {}
    for row in connection.execute(query.order_by(columns.revision)):
        found[row.asset_group, row.start_us] = Head(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
    return found


def save(db: Database, connection: Connection, made: Settlement, previous: Head | None, *, now_us: int) -> Head:
    """Write a settlement as the revision after ``previous``, and its derived rows; all in the caller's transaction."""
    revision = FIRST_REVISION if previous is None else previous.revision + 1
    undone = () if previous is None else reversal_of(read_transaction(connection, previous))
    made_of = (*undone, *postings_of(made.allocation))
    assert sum(posting.amount_nanos for posting in made_of) == 0, made
    head = Head(
        transaction_id=transaction_id(made.asset_group, made.start_us, revision),
        asset_group=made.asset_group,
        start_us=made.start_us,
        end_us=made.end_us,
        revision=revision,
        month=made.month,
        booked_month=made.booked_month,
        currency=made.currency,
        bill_nanos=sum(line.amount_nanos for line in made.allocation.lines),
        batches=made.batches,
        frame_digest=made.frame_digest,
        inputs_digest=made.inputs_digest,
        reverses=None if previous is None else previous.transaction_id,
        booked_us=made.booked_us,
    )
    row: dict[str, Any] = {name: getattr(head, name) for name in Head.__slots__} | {"created_us": now_us}
    postings = [
        (
            head.transaction_id,
            line,
            posting.side.value,
            posting.account,
            posting.kind.value,
            posting.tenant,
            posting.amount_nanos,
            posting.asset_us,
            int(posting.reversal),
        )
        for line, posting in enumerate(made_of)
    ]
    connection.execute(t.transactions.insert().values(**row, digest=row_digest(t.transactions, row, below=postings)))
    write_rows(connection, t.postings, postings)
    rollups.save_derived(db, connection, made)
    return head


def read_transaction(connection: Connection, head: Head) -> Transaction:
    """A transaction with its postings."""
    columns = t.postings.c
    rows = connection.execute(
        select(t.postings).where(columns.transaction_id == head.transaction_id).order_by(columns.line)
    )
    return Transaction(
        transaction_id=head.transaction_id,
        group=head.asset_group,
        start_us=head.start_us,
        end_us=head.end_us,
        revision=head.revision,
        currency=head.currency,
        belongs_to=head.month,
        booked_at_us=head.booked_us,
        inputs_digest=head.inputs_digest,
        reverses=head.reverses,
        postings=tuple(
            Posting(
                side=Side(row.side),
                account=row.account,
                kind=Kind(row.kind),
                tenant=row.tenant,
                amount_nanos=row.amount_nanos,
                asset_us=row.asset_us,
                reversal=bool(row.reversal),
            )
            for row in rows
        ),
    )


# --- what settling looks up -----------------------------------------------------------------------------


def segment_terms(connection: Connection, asset_group: str, interval_us: int) -> list[SegmentTerms]:
    """The segments of the settled interval that begins at ``interval_us``, in order."""
    s = t.segments.c
    query = select(t.segments).where(s.asset_group == asset_group, s.interval_us == interval_us)
    return [
        SegmentTerms(
            start_us=row.start_us,
            end_us=row.end_us,
            blocks=row.blocks,
            bill_nanos=row.bill_nanos,
            observed_us=row.observed_us,
            kv_nanos=row.kv_nanos,
            compute_nanos=row.compute_nanos,
            step_us=row.step_us,
            weighted_block_us=int(row.weighted_block_us),
        )
        for row in connection.execute(query.order_by(s.start_us))
    ]


def later_memos(connection: Connection, asset_group: str, use_start_us: int) -> list[int]:
    """Starts of the other intervals whose memo lines speak of the interval at ``use_start_us``."""
    m = t.memo_lines.c
    query = select(m.start_us).where(
        m.asset_group == asset_group, m.use_start_us == use_start_us, m.start_us != use_start_us
    )
    return sorted(row.start_us for row in connection.execute(query.distinct()))


def session_rate(connection: Connection, asset_group: str, start_us: int, basis: Basis) -> dict[int, tuple[int, int]]:
    """Of a settled interval: each session's active cost and active block time, by dimension id."""
    c, u = t.session_costs, t.usage_hours
    engine = asset_group.removeprefix("engine:")
    costs = connection.execute(
        select(c.c.dims, func.sum(c.c.amount_nanos).label("nanos"))
        .where(c.c.asset_group == asset_group, c.c.start_us == start_us, c.c.basis == basis.value, c.c.kind == "active")
        .group_by(c.c.dims)
    )
    nanos = {row.dims: int(row.nanos) for row in costs}
    h = t.pool_hours
    used = connection.execute(
        select(u.c.dims, u.c.active_block_us)
        .join(h, and_(h.c.engine == u.c.engine, h.c.pool == u.c.pool, h.c.start_us == u.c.start_us))
        .where(u.c.engine == engine, u.c.start_us == start_us, h.c.paying == 1)
    )
    rates: dict[int, tuple[int, int]] = {}
    for row in used:
        rates[row.dims] = nanos.get(row.dims, 0), rates.get(row.dims, (0, 0))[1] + row.active_block_us
    return rates


def head(connection: Connection, asset_group: str, start_us: int) -> Head | None:
    """The newest transaction of one interval; None where it was never settled."""
    return heads(connection, start_us, start_us + 1, asset_group=asset_group).get((asset_group, start_us))


def settled_from(connection: Connection) -> int | None:
    """The start of the earliest interval that is booked; None for an empty journal."""
    found = connection.execute(select(func.min(t.transactions.c.start_us))).scalar_one()
    return None if found is None else int(found)


def settled_until(connection: Connection) -> int | None:
    """The end of the latest interval that is booked; None for an empty journal."""
    found = connection.execute(select(func.max(t.transactions.c.end_us))).scalar_one()
    return None if found is None else int(found)


def settled_inputs(connection: Connection, month: str) -> str | None:
    """The digest under which a month was last gone through; None where it never was."""
    m = t.settled_months.c
    found = connection.execute(select(m.inputs).where(m.month == month)).scalar_one_or_none()
    return None if found is None else str(found)


def keep_settled_inputs(connection: Connection, month: str, inputs: str) -> None:
    """Remember that a month has been gone through."""
    m = t.settled_months
    connection.execute(m.delete().where(m.c.month == month))
    connection.execute(m.insert().values(month=month, inputs=inputs))


def count_settled(connection: Connection, month: str) -> int:
    """How many intervals of asset groups of a month are booked."""
    x = t.transactions.c
    query = select(func.count()).where(x.month == month, x.revision == FIRST_REVISION)
    return int(connection.execute(query).scalar_one())


def config_state(connection: Connection) -> tuple[int, ...]:
    """How many rows of configuration there are, table by table: they are only ever added to."""
    return tuple(
        int(connection.execute(select(func.coalesce(func.max(each.c.id), 0))).scalar_one()) for each in t.CONFIGURATION
    )


# --- months ---------------------------------------------------------------------------------------------


def last_closed(connection: Connection) -> str | None:
    """The latest closed month; None before the first close."""
    found = connection.execute(select(func.max(t.statements.c.month))).scalar_one()
    return None if found is None else str(found)


def closed_months(connection: Connection) -> tuple[str, ...]:
    """The months that are closed, in order."""
    return tuple(connection.execute(select(t.statements.c.month).order_by(t.statements.c.month)).scalars())


def save_statement(connection: Connection, row: Mapping[str, Any]) -> None:
    """Write a closed month (the columns of ``statements`` but its digests), chained to the month before."""
    last = last_closed(connection)
    before = "" if last is None else str(getattr(statement_row(connection, last), "digest", ""))
    full = {**row, "previous_digest": before}
    connection.execute(t.statements.insert().values(**full, digest=row_digest(t.statements, full)))


def statement_row(connection: Connection, month: str) -> Row[Any] | None:
    """A closed month as it was written down."""
    return connection.execute(select(t.statements).where(t.statements.c.month == month)).one_or_none()
