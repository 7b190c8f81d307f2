"""The audit: every law on what is stored, a sentence for each breach. Silence means that all of it holds.

Invariants: nothing is written, nothing is trusted: digests are made again from rows, settlements again from facts by
the functions that settle, sums again from their parts. What retention has taken is not asked for; an interval whose
inputs have changed since it was settled is no breach, it is settled again by the next run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.core.periods import HOUR_US, Month, months_between
from ledger.core.pricing import asset_segments, bill
from ledger.core.settlement import Basis
from ledger.intervals import Desk, group_of
from ledger.reports.statement import as_value
from ledger.settle import booked_statement, first_us
from ledger.store import audit_reads, books, fact_audit, inputs, rollups, scrapes, terms
from ledger.store.rows import canonical

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.store.audit_reads import Kept
    from ledger.store.books import Head, Settlement
    from ledger.store.database import Connection, Database
    from ledger.store.terms import LedgerTerms


UNREADABLE = (KeyError, ValueError, TypeError, AssertionError, ZeroDivisionError)
"""What reading damaged rows may raise: a breach to be named, not the audit's own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One thing that does not hold: the law or rule, where, and how it shows."""

    law: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law}: {self.where}: {self.detail}"


def audit(db: Database) -> tuple[Breach, ...]:
    """Check all that is stored, on one snapshot."""
    with db.read() as snapshot:
        return tuple(audit_snapshot(snapshot))


def audit_since(db: Database, since_us: int) -> tuple[Breach, ...]:
    """Check the batches and the settled intervals that begin at ``since_us`` or later, and nothing else.

    What this leaves out: everything older, the registers, the journal's own digests, closed months.
    """
    with db.read() as snapshot:
        found = list(_facts(snapshot, since_us))
        if books.settled_from(snapshot) is not None:
            found += _rollups(snapshot, terms.read_terms(snapshot), since_us)
        return tuple(found)


def rebuild_rollups(db: Database) -> tuple[Breach, ...]:
    """Make every roll-up again that facts still allow, and say where it differs from what is kept; writes nothing."""
    with db.read() as snapshot:
        return tuple(_rollups(snapshot, terms.read_terms(snapshot)))


def audit_snapshot(snapshot: Connection) -> Iterator[Breach]:
    """Every breach that one snapshot shows."""
    yield from _facts(snapshot)
    yield from _say("law 4", audit_reads.request_breaches(snapshot))
    yield from _say("receipt", audit_reads.receipt_breaches(snapshot))
    yield from _say("receipt", audit_reads.place_breaches(snapshot))
    yield from _say("row digest", audit_reads.config_breaches(snapshot))
    yield from _say("row digest", scrapes.round_breaches(snapshot))
    yield from _say("journal", audit_reads.journal_breaches(snapshot))
    yield from _say("roll-up", audit_reads.orphans(snapshot))
    yield from _say("statement", audit_reads.statement_breaches(snapshot))
    if books.settled_from(snapshot) is not None:
        ledger = terms.read_terms(snapshot)
        yield from _rollups(snapshot, ledger)
        yield from _months(snapshot, ledger)


def _facts(snapshot: Connection, since_us: int = 0) -> Iterator[Breach]:
    for sentence in fact_audit.fact_breaches(snapshot, since_us=since_us):
        where, _, detail = sentence.partition(": ")
        yield Breach(law="facts", where=where, detail=detail)


def _say(law: str, found: Iterable[tuple[str, str]]) -> Iterator[Breach]:
    for where, detail in found:
        yield Breach(law=law, where=where, detail=detail)


# --- settlements ----------------------------------------------------------------------------------------


def _rollups(snapshot: Connection, ledger: LedgerTerms, since_us: int = 0) -> Iterator[Breach]:
    """Each settled interval, settled again, gives what is kept; and the assets' bills close over their groups."""
    start_us, end_us = first_us(snapshot), books.settled_until(snapshot)
    if start_us is None or end_us is None or end_us <= since_us:
        return
    for month in months_between(max(start_us, since_us), end_us, ledger.zone):
        yield from _month_rollups(snapshot, ledger, month, since_us)


def _month_rollups(snapshot: Connection, ledger: LedgerTerms, month: Month, since_us: int) -> Iterator[Breach]:
    month_us, end_us = ledger.month_bounds(str(month))
    bounds = (max(month_us, since_us), end_us)
    heads = books.heads(snapshot, *bounds)
    if not heads:
        return
    desk = Desk(snapshot, str(month), bounds[1])
    reader = inputs.PeriodReader(snapshot)
    length_us = ledger.interval_us
    counts = inputs.count_facts(snapshot, bounds[0] - bounds[0] % HOUR_US, bounds[1], length_us)
    bills: dict[tuple[int, str], int] = {}
    stale: set[int] = set()
    for (key, at_us), head in sorted(heads.items(), key=lambda item: (item[0][1], item[0][0])):
        group = group_of(key)
        where = f"{key} {at_us}"
        try:
            numbers = audit_reads.kept_dims(snapshot, key, at_us)
            rows = audit_reads.kept(snapshot, key, at_us, reader.dimensions(numbers))
            yield from _kept_breaches(where, rows, ledger.terms(str(month)).basis)
            facts = desk.facts(counts, group, at_us)
            frame = desk.frame(group, at_us, at_us + length_us)
            if facts != head.batches or frame.digest != head.frame_digest:
                stale.add(at_us)
                continue
            made = desk.settlement(frame)
        except UNREADABLE as error:
            stale.add(at_us)
            yield Breach(law="roll-up", where=where, detail=f"cannot be settled again ({error!r})")
            continue
        if made.inputs_digest != head.inputs_digest:
            yield Breach(law="inputs digest", where=where, detail="its facts are not those that were settled")
            stale.add(at_us)
            continue
        yield from _differences(where, made, rows, head)
        for asset_id, nanos in made.allocation.asset_credits:
            bills[at_us, asset_id] = bills.get((at_us, asset_id), 0) + nanos
    for (at_us, asset_id), nanos in sorted(bills.items()):
        if at_us not in stale:
            yield from _bill_breaches(desk, at_us, at_us + length_us, asset_id, nanos)


def _differences(where: str, made: Settlement, rows: Kept, head: Head) -> Iterator[Breach]:
    """What was kept of an interval against what settling it again gives."""
    yield from _compare(f"{where} basis_lines", rollups.line_rows(made), rows.lines)
    yield from _compare(f"{where} session_costs", rollups.cost_rows(made), rows.costs)
    yield from _compare(f"{where} memo_lines", rollups.memo_rows(made.memos), rows.memos)
    if rollups.segment_rows(made) != rows.segments:
        yield Breach(law="roll-up", where=f"{where} segments", detail="differ from those made again")
    if made.engine is None:
        return
    pools = sorted(rollups.pool_hour(made.engine, made.start_us, made.end_us, pool) for pool in made.pools)
    if pools != rows.pools:
        yield Breach(law="roll-up", where=f"{where} pool_hours", detail="differ from those made again")
    usage = {
        (pool.pool, session.dims): rollups.usage_hour(made.engine, pool.pool, made.start_us, 0, session)[4:]
        for pool in made.pools
        for session in pool.sessions
    }
    stored = {(row[1], row[3]): row[4:] for row in rows.usage}
    yield from _compare(f"{where} usage_hours", usage, stored)
    bill_nanos = sum(line.amount_nanos for line in made.allocation.lines)
    if bill_nanos != head.bill_nanos or head.month != made.month:
        yield Breach(law="law 5", where=where, detail=f"billed {head.bill_nanos} nanos, again {bill_nanos}")


def _compare(where: str, again: Mapping[Any, Any], stored: Mapping[Any, Any]) -> Iterator[Breach]:
    nothing = (0, None)
    for key in sorted({*again, *stored}, key=str):
        made, kept = again.get(key), stored.get(key)
        if made != kept and not all(value in nothing for value in (*(made or ()), *(kept or ()))):
            yield Breach(law="roll-up", where=f"{where} {key}", detail=f"has {kept}, made again it is {made}")


def _kept_breaches(where: str, rows: Kept, basis: Basis) -> Iterator[Breach]:
    """Laws 2 and 5 on the kept rows alone, which hold even where the facts are gone."""
    sessions: dict[tuple[str, str, str], int] = {}
    for (of, dims, kind), (nanos,) in rows.costs.items():
        key = (of, kind, "" if dims is None else dims.tenant)
        sessions[key] = sessions.get(key, 0) + (nanos or 0)
    tenants = {
        (of, kind, tenant): values[0] or 0
        for (of, account, kind, tenant), values in rows.lines.items()
        if account == "tenant"
    }
    for key in sorted({*sessions, *tenants}):
        if sessions.get(key, 0) != tenants.get(key, 0):
            detail = f"sessions sum to {sessions.get(key, 0)} nanos, the tenant's line is {tenants.get(key, 0)}"
            yield Breach(law="law 5", where=f"{where} {key}", detail=detail)
    booked = {key[1:]: values[0] or 0 for key, values in rows.lines.items() if key[0] == basis.value}
    for account in sorted({*booked, *rows.postings}):
        if booked.get(account, 0) != rows.postings.get(account, 0):
            detail = f"the line is {booked.get(account, 0)} nanos, postings sum to {rows.postings.get(account, 0)}"
            yield Breach(law="law 5", where=f"{where} {account}", detail=detail)
    totals = {of: sum(v[0] or 0 for key, v in rows.lines.items() if key[0] == of) for of in {k[0] for k in rows.lines}}
    if len(set(totals.values())) > 1:
        yield Breach(law="law 5", where=where, detail=f"the bases sum to different bills: {totals}")
    yield from _quantity_breaches(where, rows)


def _quantity_breaches(where: str, rows: Kept) -> Iterator[Breach]:
    """Law 2 over the interval, and that nobody is charged for a quantity of nothing."""
    names = rollups.USAGE_HOUR
    used = {(row[1], row[3]): dict(zip(names, row, strict=True)) for row in rows.usage}
    for pool in rows.pools:
        totals = dict(zip(rollups.POOL_HOUR, pool, strict=True))
        for name in ("active_block_us", "cached_block_us", "unfilled_slot_us"):
            have = sum(row[name] for (of, _), row in used.items() if of == totals["pool"])
            if have != totals[name]:
                detail = f"sessions have {have} {name}, the pool {totals[name]}"
                yield Breach(law="law 2", where=f"{where} {totals['pool']}", detail=detail)
        spent = sum(row["compute_us"] for (of, _), row in used.items() if of == totals["pool"])
        if totals["paying"] and spent != totals["step_us"]:
            detail = f"sessions have {spent} µs of compute, the steps {totals['step_us']}"
            yield Breach(law="law 3", where=f"{where} {totals['pool']}", detail=detail)
    behind = {"active": "active_block_us", "cached": "cached_charged_block_us", "compute": "compute_us"}
    for (of, dims, kind), (nanos,) in rows.costs.items():
        if (nanos or 0) > 0 and not any(row[behind[kind]] for (_, who), row in used.items() if who == dims):
            yield Breach(law="quantity", where=f"{where} {of} {dims}", detail=f"{nanos} nanos of {kind} for no time")


def _bill_breaches(desk: Desk, start_us: int, end_us: int, asset_id: str, nanos: int) -> Iterator[Breach]:
    """Law 5 over the groups that share an asset: their parts sum to what it costs."""
    for asset in desk.assets(start_us, end_us):
        if asset.asset_id == asset_id:
            due = sum(bill(part.price, part.start_us, part.end_us) for part in asset_segments(asset, start_us, end_us))
            if due != nanos:
                detail = f"costs {due} nanos, its groups were billed {nanos}"
                yield Breach(law="law 5", where=f"asset {asset_id} {start_us}", detail=detail)


# --- months ---------------------------------------------------------------------------------------------


def _months(snapshot: Connection, ledger: LedgerTerms) -> Iterator[Breach]:
    """A closed month's statement sums to its bill, and is what its rows say."""
    for row in audit_reads.closed_months(snapshot):
        where = f"statement {row.month}"
        body = json.loads(row.body)
        for basis in Basis:
            said = body[basis.value]
            total = sum(line["amount_nanos"] for line in said["lines"])
            if total != said["bill_nanos"]:
                yield Breach(law="law 5", where=where, detail=f"lines sum to {total}, the bill is {said['bill_nanos']}")
            again = as_value(booked_statement(snapshot, ledger, row.month, basis))
            for part in ("lines", "memos", "adjustments"):
                if canonical(said[part]) != canonical(again[part]):
                    yield Breach(law="statement", where=where, detail=f"its {basis} {part} are not what its rows say")
        if row.bill_nanos != body[row.basis]["bill_nanos"]:
            yield Breach(law="statement", where=where, detail="its bill is not that of its body")
