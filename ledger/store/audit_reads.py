"""What the audit looks at: stored rows against their own digests, and the rows that were kept of an interval.

Everything here reads; a breach is returned as a sentence, never raised.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, exists, func, select

from ledger import limits
from ledger.core.journal import FIRST_REVISION, transaction_id
from ledger.store import book_tables as t
from ledger.store import sample_tables as g
from ledger.store import tables as f
from ledger.store.rows import row_digest
from ledger.wire import peek

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Row, Table

    from ledger.core.records import Dimensions
    from ledger.store.database import Connection
    from ledger.store.rollups import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The derived rows of an interval; money is summed over the months in which it was booked."""

    lines: Rows
    costs: Rows
    memos: Rows
    segments: list[tuple[Any, ...]]
    pools: list[tuple[Any, ...]]
    usage: list[tuple[Any, ...]]
    postings: dict[tuple[str, str, str], int]


# --- rows with a digest of their own --------------------------------------------------------------------


def config_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """(where, what is wrong) of configuration rows and findings: each answers for itself, and none is missing."""
    for table in (*t.CONFIGURATION, t.findings):
        expected = 0
        for row in connection.execute(select(table).order_by(table.c.id)).mappings():
            expected += 1
            where = f"{table.name} {row['id']}"
            if row["id"] != expected:
                yield where, f"follows number {expected - 1}: a row is missing"
                expected = row["id"]
            if row["digest"] != row_digest(table, row):
                yield where, "does not fit its digest"


def journal_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """(where, what is wrong) of transactions: digests, sums, ids, and revisions that undo each other."""
    previous: Row[Any] | None = None
    booked: list[tuple[Any, ...]] = []
    x = t.transactions
    rows = connection.execute(select(x).order_by(x.c.asset_group, x.c.start_us, x.c.revision)).all()
    for row in rows:
        same = previous is not None and (previous.asset_group, previous.start_us) == (row.asset_group, row.start_us)
        postings = _postings(connection, row.transaction_id)
        where = f"transaction {row.asset_group} {row.start_us} revision {row.revision}"
        for detail in _transaction_faults(row, postings):
            yield where, detail
        for detail in _revision_faults(row, postings, previous if same else None, booked if same else []):
            yield where, detail
        booked = [(*posting[2:6], -posting[6]) for posting in postings if not posting[8]]
        previous = row
    seen = {row.transaction_id for row in rows}
    for row in connection.execute(select(t.postings.c.transaction_id).distinct()):
        if row.transaction_id not in seen:
            yield f"postings of {row.transaction_id}", "have no transaction"


def _transaction_faults(row: Row[Any], postings: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    if row.digest != row_digest(t.transactions, row._mapping, below=postings):  # noqa: SLF001 - public in SQLAlchemy
        yield "does not fit its digest"
    if row.transaction_id != transaction_id(row.asset_group, row.start_us, row.revision):
        yield f"has the id {row.transaction_id}, which is not its key's"
    if total := sum(posting[6] for posting in postings):
        yield f"its postings sum to {total} nanos"
    if row.bill_nanos != sum(posting[6] for posting in postings if posting[2] == "account" and not posting[8]):
        yield f"its accounts do not sum to its bill of {row.bill_nanos} nanos"


def _revision_faults(
    row: Row[Any], postings: Sequence[tuple[Any, ...]], before: Row[Any] | None, booked: Sequence[tuple[Any, ...]]
) -> Iterator[str]:
    if row.revision != (FIRST_REVISION if before is None else before.revision + 1):
        yield "a revision before it is missing"
    if row.reverses != (None if before is None else before.transaction_id):
        yield f"reverses {row.reverses}, which is not the revision before it"
    if [posting[2:7] for posting in postings if posting[8]] != list(booked):
        yield "does not take back what the revision before it booked"


def _postings(connection: Connection, number: str) -> list[tuple[Any, ...]]:
    p = t.postings
    return [tuple(row) for row in connection.execute(select(p).where(p.c.transaction_id == number).order_by(p.c.line))]


def statement_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """(where, what is wrong) of closed months: digests, and the chain from month to month."""
    before = ""
    for row in connection.execute(select(t.statements).order_by(t.statements.c.month)).mappings():
        where = f"statement {row['month']}"
        if row["digest"] != row_digest(t.statements, row):
            yield where, "does not fit its digest"
        if row["previous_digest"] != before:
            yield where, "is not chained to the month before it"
        before = row["digest"]


def closed_months(connection: Connection) -> Sequence[Row[Any]]:
    """Closed months, in order."""
    return connection.execute(select(t.statements).order_by(t.statements.c.month)).all()


# --- facts beside their batches -------------------------------------------------------------------------


def request_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """Law 4 over batches: at most one record and one admission of a request, and no record without an admission."""
    lost = f.lost_periods
    for table, what in ((f.request_records, "records"), (f.admissions, "admissions")):
        query = (
            select(table.c.boot, table.c.request, func.count().label("times"))
            .where(~exists().where(lost.c.boot == table.c.boot, lost.c.seq == table.c.seq))
            .group_by(table.c.boot, table.c.request)
            .having(func.count() > 1)
        )
        for row in connection.execute(query):
            yield f"request {row.request!r} of boot {row.boot}", f"has {row.times} {what}"
    r, a, b = f.request_records, f.admissions, f.batches
    # Where a batch of the boot is missing, the admission may have been in it.
    whole = (
        select(b.c.boot)
        .group_by(b.c.boot)
        .having(and_(func.min(b.c.seq) == 1, func.max(b.c.seq) == func.count()))
        .scalar_subquery()
    )
    query = select(r.c.boot, r.c.request).where(
        r.c.boot.in_(whole), ~exists().where(a.c.boot == r.c.boot, a.c.request == r.c.request)
    )
    for row in connection.execute(query):
        yield f"request {row.request!r} of boot {row.boot}", "has a record and was never received"


def receipt_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """What the ledger itself adds to batches: the day, whether they lay ahead, who won an overlap, quarantine."""
    b, p = f.batches, f.lost_periods
    yield from _key_breaches(connection, "batch", b, f.boots, f.sources)
    yield from _key_breaches(connection, "samples", g.agent_batches, g.agent_boots, g.agents)
    w = b.alias("winner")
    joined = p.outerjoin(b, and_(b.c.boot == p.c.boot, b.c.seq == p.c.seq)).outerjoin(
        w, and_(w.c.boot == p.c.winner_boot, w.c.seq == p.c.winner_seq)
    )
    query = select(p.c.boot, p.c.seq, p.c.winner_boot, b.c.start_us, b.c.end_us, w.c.start_us, w.c.end_us)
    for boot, seq, winner, start, end, won_start, won_end in connection.execute(query.select_from(joined)):
        stands = None not in (start, end, won_start, won_end) and won_start < end and start < won_end
        if not stands or winner >= boot:
            yield f"lost batch {seq} of boot {boot}", "no batch of an earlier boot claims its time"
    for row in connection.execute(select(f.quarantine)):
        raw = bytes(row.raw)
        if row.bytes != len(raw) or bytes(row.digest) != hashlib.sha256(raw).digest():
            yield f"quarantine {row.id}", "its size or digest is not that of its bytes"
        if (row.engine, row.boot_id, row.seq) != peek(raw):
            yield f"quarantine {row.id}", "its bytes are of another batch"


def _key_breaches(
    connection: Connection, what: str, b: Table, boots: Table, sources: Table
) -> Iterator[tuple[str, str]]:
    wrong = (b.c.day != b.c.start_us // limits.DAY_US) | ((b.c.ahead == 1) != (b.c.end_us > b.c.received_us))
    for row in connection.execute(select(b.c.boot, b.c.seq).where(wrong)):
        yield f"{what} {row.seq} of boot {row.boot}", "its day, or whether it lay ahead, is not what its times say"
    alone = select(b.c.boot, b.c.seq).where(
        ~exists().where(boots.c.id == b.c.boot) | ~exists().where(sources.c.id == b.c.source)
    )
    for row in connection.execute(alone):
        yield f"{what} {row.seq} of boot {row.boot}", "its boot or its source is missing"


def place_breaches(connection: Connection) -> Iterator[tuple[str, str]]:
    """(where, what is wrong) of rows whose places are not 0, 1, 2, …: a batch says nothing of them but their order."""
    for table in (*f.OF_BOOTS, *f.PARTITIONED, *g.SAMPLES):
        last = "sub" if "sub" in table.c else "pos"
        parent = [table.c[name] for name in ("boot", "seq", "pos") if name != last]
        query = select(*parent).group_by(*parent).having(func.max(table.c[last]) + 1 != func.count())
        for row in connection.execute(query):
            yield f"{table.name} of batch {row.seq} of boot {row.boot}", "its rows are not numbered one after another"
    flags = (
        *((f.batches, "has_standing"), (f.batches, "ahead"), (f.pool_opens, "paying")),
        *((g.agent_batches, "has_gpus"), (g.agent_batches, "ahead")),
    )
    for table, flag in flags:
        query = select(table.c.boot, table.c.seq).where(table.c[flag].not_in((0, 1)))
        for row in connection.execute(query):
            yield f"{table.name} of batch {row.seq} of boot {row.boot}", f"{flag} is neither 0 nor 1"


# --- what is kept of an interval ------------------------------------------------------------------------


def kept(connection: Connection, asset_group: str, start_us: int, dims: dict[int, Dimensions]) -> Kept:
    """The derived rows of an interval; ``dims`` must hold every dimension set that :func:`kept_dims` names."""
    engine = asset_group.removeprefix("engine:") if asset_group.startswith("engine:") else None
    costs = _money(connection, t.session_costs, asset_group, start_us)
    s, h, u = t.segments, t.pool_hours, t.usage_hours
    segments = connection.execute(
        select(s).where(s.c.asset_group == asset_group, s.c.interval_us == start_us).order_by(s.c.start_us)
    )
    pools: list[tuple[Any, ...]] = []
    usage: list[tuple[Any, ...]] = []
    if engine is not None:
        pools = [
            tuple(row)
            for row in connection.execute(
                select(h).where(h.c.engine == engine, h.c.start_us == start_us).order_by(h.c.pool)
            )
        ]
        usage = [
            (*row[:3], dims.get(row[3]), *row[4:])
            for row in connection.execute(select(u).where(u.c.engine == engine, u.c.start_us == start_us))
        ]
    return Kept(
        lines=_money(connection, t.basis_lines, asset_group, start_us),
        costs={(basis, dims.get(number), kind): values for (basis, number, kind), values in costs.items()},
        memos=_money(connection, t.memo_lines, asset_group, start_us),
        segments=[tuple(row) for row in segments],
        pools=pools,
        usage=usage,
        postings=_net_postings(connection, asset_group, start_us),
    )


def kept_dims(connection: Connection, asset_group: str, start_us: int) -> set[int]:
    """Ids of the dimension sets that the derived rows of an interval name."""
    c, u = t.session_costs, t.usage_hours
    engine = asset_group.removeprefix("engine:")
    found = connection.execute(select(c.c.dims).where(c.c.asset_group == asset_group, c.c.start_us == start_us))
    numbers = {row.dims for row in found}
    used = connection.execute(select(u.c.dims).where(u.c.engine == engine, u.c.start_us == start_us))
    return numbers | {row.dims for row in used}


def orphans(connection: Connection) -> Iterator[tuple[str, str]]:
    """Derived rows of intervals that no transaction has, or that were booked in a month in which it was not."""
    x = t.transactions.c
    for table in t.MONEY_ROWS:
        known = exists().where(
            x.asset_group == table.c.asset_group, x.start_us == table.c.start_us, x.month == table.c.month
        )
        if table is not t.memo_lines:  # what later revisions change of them is booked without a transaction
            known = known.where(x.booked_month == table.c.booked_month)
        for row in connection.execute(select(table.c.asset_group, table.c.start_us).where(~known).distinct()):
            yield f"{table.name} of {row.asset_group} {row.start_us}", "no transaction has booked that interval"
    s = t.segments.c
    known = exists().where(x.asset_group == s.asset_group, x.start_us == s.interval_us)
    for row in connection.execute(select(s.asset_group, s.interval_us).where(~known).distinct()):
        yield f"segments of {row.asset_group} {row.interval_us}", "no transaction has booked that interval"
    for table in (t.usage_hours, t.pool_hours):
        known = exists().where(x.asset_group == "engine:" + table.c.engine, x.start_us == table.c.start_us)
        for row in connection.execute(select(table.c.engine, table.c.start_us).where(~known).distinct()):
            yield f"{table.name} of {row.engine} {row.start_us}", "no transaction has booked that interval"


def _money(connection: Connection, table: Table, asset_group: str, start_us: int) -> Rows:
    keys = [c for c in table.primary_key.columns if c.name not in ("asset_group", "start_us", "booked_month")]
    values = [c for c in table.columns if not c.primary_key and c.name != "month"]
    query = (
        select(*keys, *(func.sum(c) for c in values))
        .where(table.c.asset_group == asset_group, table.c.start_us == start_us)
        .group_by(*keys)
    )
    return {
        tuple(row[: len(keys)]): tuple(None if value is None else int(value) for value in row[len(keys) :])
        for row in connection.execute(query)
    }


def _net_postings(connection: Connection, asset_group: str, start_us: int) -> dict[tuple[str, str, str], int]:
    p, x = t.postings, t.transactions
    query = (
        select(p.c.account, p.c.kind, p.c.tenant, func.sum(p.c.amount_nanos))
        .join(x, x.c.transaction_id == p.c.transaction_id)
        .where(x.c.asset_group == asset_group, x.c.start_us == start_us, p.c.side == "account")
        .group_by(p.c.account, p.c.kind, p.c.tenant)
    )
    return {(row[0], row[1], row[2]): int(row[3]) for row in connection.execute(query)}
