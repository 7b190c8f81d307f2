"""Settling: close an interval, close a month. Load, compute in the core, save in one transaction.

Invariants: an interval is booked again only if the digest of its inputs changed, and then revision n+1 undoes n;
a closed month's rows never change, what comes later is booked in the open month and names the month it belongs to;
settling twice, at once, or after a crash leaves what settling once leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ledger.core.digests import digest
from ledger.core.periods import HOUR_US, SILENCE_US, format_time, month_after, months_between
from ledger.core.settlement import Basis
from ledger.errors import UsageError
from ledger.intervals import AssetGroup, Desk, Frame, group_of, open_boundary
from ledger.reports.statement import Heading, as_value, make_statement
from ledger.store import book_reads, books, findings, inputs, prices, rollups, scrapes, terms
from ledger.store.database import lock
from ledger.store.findings import Finding, Severity
from ledger.store.rows import canonical
from ledger.store.sample_sights import agent_sights, first_seen_us

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.reports.statement import Statement
    from ledger.store.books import Head, Settlement
    from ledger.store.database import Connection, Database
    from ledger.store.terms import LedgerTerms

LOCK = "books"
"""Whoever writes the journal or a statement holds it: one at a time, so that a month closes between settlements."""

CRITICAL = ("over_allocation",)
"""Codes of findings that somebody should see at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a run of :func:`settle` did, in asset groups and intervals. ``findings`` counts new ones."""

    booked: int
    revised: int
    unchanged: int
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisional:
    """The figures of a month's time that is not settled yet, up to ``until_us``; nothing of it is written.

    They go with what is booked up to ``settled_us`` (None: nothing is), and count twice beside what is booked later.
    """

    month: str
    settled_us: int | None
    from_us: int
    until_us: int
    settlements: tuple[Settlement, ...]


def settle(db: Database, *, until_us: int, now_us: int) -> Settled:
    """Book every interval that is over at ``until_us`` and new or changed; safe beside another that does the same."""
    booked = revised = unchanged = found = 0
    for month in _months(db, until_us):
        with db.read() as snapshot:
            ledger = terms.read_terms(snapshot)
            counts = _counts(snapshot, ledger, month, until_us)
            state = _state(snapshot, ledger, month, until_us, counts)
            if books.settled_inputs(snapshot, month) == state:
                unchanged += books.count_settled(snapshot, month)
                continue
            desk = Desk(snapshot, month, until_us)
            complete = True
            for frame, head in _due(snapshot, desk, counts):
                made = None if frame is None else desk.settlement(frame)
                if made is None or (head is not None and made.inputs_digest == head.inputs_digest):
                    unchanged += 1
                    continue
                wrote, noticed = _book(db, made, head, now_us=now_us)
                found += noticed
                booked += wrote and head is None
                revised += wrote and head is not None
                complete = complete and wrote
        if complete:
            db.write(partial(_keep_state, month=month, state=state))
    return Settled(booked=booked, revised=revised, unchanged=unchanged, findings=found)


def provisional(db: Database, *, now_us: int, month: str | None = None) -> tuple[Provisional, ...]:
    """What the open time would be booked as, by month, from the first interval that is not settled on.

    It ends at the last boundary that every open pool has delivered, at most 60 s before ``now_us``.
    """
    found = []
    with db.read() as snapshot:
        ledger = terms.read_terms(snapshot)
        settled_us = from_us = books.settled_until(snapshot)
        if from_us is None:
            start_us = first_us(snapshot)
            if start_us is None:
                return ()
            from_us = start_us - start_us % ledger.interval_us
        watched = [record.end_us for record in scrapes.last_records(snapshot, now_us, SILENCE_US).values()]
        until_us = open_boundary(inputs.load_boots(snapshot, from_us, now_us), now_us, watched)
        for each in months_between(from_us, until_us, ledger.zone):
            if month is not None and str(each) != month:
                continue
            desk = Desk(snapshot, str(each), until_us)
            start_us, end_us = max(from_us, desk.start_us), min(until_us, desk.end_us)
            found.append(
                Provisional(
                    month=str(each),
                    settled_us=settled_us,
                    from_us=start_us,
                    until_us=end_us,
                    settlements=tuple(prepare(snapshot, desk, start_us, end_us)),
                )
            )
    return tuple(found)


def still_open(parts: Sequence[Provisional], settled_us: int | None) -> list[Provisional]:
    """Those of ``parts`` that go with what is booked up to ``settled_us``; beside more they would count twice."""
    return [part for part in parts if part.settled_us == settled_us]


def prepare(snapshot: Connection, desk: Desk, start_us: int, end_us: int) -> Iterator[Settlement]:
    """The settlements of ``[start_us, end_us)`` of the desk's month, by interval, the first and last cut."""
    length_us = desk.ledger.interval_us
    counts = inputs.count_facts(snapshot, start_us - start_us % length_us, end_us, length_us)
    at_us = start_us
    while at_us < end_us:
        first_us = at_us - at_us % length_us
        stop_us = min(end_us, first_us + length_us)
        reporting = [engine for engine, bucket in counts if bucket == first_us]
        for group in desk.groups(at_us, stop_us, reporting):
            yield desk.settlement(desk.frame(group, at_us, stop_us))
        at_us = stop_us


def close_month(db: Database, month: str, *, now_us: int) -> bool:
    """Settle what is left of a month and freeze its statement; False where it is closed already.

    Months close in order from the one in which the ledger's time begins, once they are over. Raises UsageError.
    """
    with db.read() as snapshot:
        ledger = terms.read_terms(snapshot)
        if books.statement_row(snapshot, month) is not None:
            return False
        last = books.last_closed(snapshot)
        start_us = first_us(snapshot)
    end_us = ledger.month_bounds(month)[1]
    if end_us > now_us:
        raise UsageError(f"{month} ends at {format_time(end_us)} and cannot be closed before")
    if last is not None and month < last:
        raise UsageError(f"{month} lies before {last}, which is closed; what arrives for it becomes an adjustment")
    if last is None and start_us is None:
        raise UsageError(f"{month} cannot be closed: the ledger is empty; add assets or book an engine's time first")
    expected = ledger.month(start_us or 0) if last is None else month_after(last)
    if month < expected:
        raise UsageError(f"{month} cannot be closed: the ledger begins in {expected}; close that first")
    if month > expected:
        raise UsageError(f"{month} cannot be closed before {expected}; months are closed in order")
    settle(db, until_us=end_us, now_us=now_us)

    def work(connection: Connection) -> bool:
        lock(connection, LOCK)
        if books.statement_row(connection, month) is not None:
            return False
        basis = ledger.terms(month).basis
        made = {each: booked_statement(connection, ledger, month, each) for each in Basis}
        books.save_statement(
            connection,
            {
                "month": month,
                "timezone": ledger.zone_name,
                "currency": ledger.currency,
                "basis": basis.value,
                "bill_nanos": made[basis].bill_nanos,
                "body": canonical({each.value: as_value(statement) for each, statement in made.items()}),
                "closed_us": now_us,
            },
        )
        return True

    return db.write(work)


def booked_statement(
    snapshot: Connection,
    ledger: LedgerTerms,
    month: str,
    basis: Basis,
    *,
    provisional_from_us: int | None = None,
    open_time: tuple[Settlement, ...] = (),
) -> Statement:
    """The statement of what is booked in a month, and of its open time where that is given."""
    heading = Heading(
        month=month,
        timezone=ledger.zone_name,
        currency=ledger.currency,
        basis=basis,
        kv_share_ppm=ledger.terms(month).kv_share_ppm,
        provisional_from_us=provisional_from_us,
    )
    return make_statement(
        heading,
        booked=book_reads.month_lines(snapshot, month, basis),
        memos=book_reads.month_memos(snapshot, month, basis),
        pools=book_reads.pool_sums(snapshot, *ledger.month_bounds(month)),
        provisional=open_time,
    )


def _months(db: Database, until_us: int) -> list[str]:
    """The months that have something to settle before ``until_us``, in order."""
    with db.read() as snapshot:
        ledger = terms.read_terms(snapshot)
        start_us = first_us(snapshot)
    if start_us is None:
        return []
    return [str(month) for month in months_between(start_us, until_us, ledger.zone)]


def first_us(snapshot: Connection) -> int | None:
    """Where the ledger's time begins: its first asset, boot, GPU seen or booking; None for an empty ledger."""
    starts = [asset.valid_from_us for asset in prices.list_assets(snapshot)]
    seen = (inputs.first_fact_us(snapshot), first_seen_us(snapshot), books.settled_from(snapshot))
    starts += [at for at in seen if at is not None]
    return min(starts, default=None)


def _counts(snapshot: Connection, ledger: LedgerTerms, month: str, until_us: int) -> dict[tuple[str, int], int]:
    """How many facts each engine has in each interval of the month, and in the hour before it."""
    start_us, end_us = ledger.month_bounds(month)
    first_us = start_us - start_us % HOUR_US - HOUR_US
    return inputs.count_facts(snapshot, first_us, min(end_us, until_us), ledger.interval_us)


def _state(
    snapshot: Connection, ledger: LedgerTerms, month: str, until_us: int, counts: dict[tuple[str, int], int]
) -> str:
    """A digest that changes with whatever a settlement of the month could depend on: facts and rows only come to be."""
    until_us = min(ledger.month_bounds(month)[1], until_us - until_us % ledger.interval_us)
    facts = tuple((engine, at_us, facts) for (engine, at_us), facts in sorted(counts.items()))
    seen = agent_sights(snapshot, ledger.month_bounds(month)[0], until_us)
    sights = tuple((s.gpu_uuid, s.gpu_model, s.cluster, s.start_us, min(s.end_us, until_us)) for s in seen)
    return digest((month, until_us, books.last_closed(snapshot), books.config_state(snapshot), facts, sights))


def _keep_state(connection: Connection, month: str, state: str) -> None:
    lock(connection, LOCK)
    books.keep_settled_inputs(connection, month, state)


def _due(
    snapshot: Connection, desk: Desk, counts: dict[tuple[str, int], int]
) -> Iterator[tuple[Frame | None, Head | None]]:
    """Each asset group and interval with its newest transaction; no frame where nothing can have changed."""
    heads = books.heads(snapshot, desk.start_us, desk.end_us)
    reporting: dict[int, set[str]] = {}
    for engine, at_us in counts:
        reporting.setdefault(at_us, set()).add(engine)
    settled: dict[int, set[AssetGroup]] = {}
    for key, at_us in heads:
        settled.setdefault(at_us, set()).add(group_of(key))
    for start_us, end_us in desk.intervals():
        found = {*desk.groups(start_us, end_us, reporting.get(start_us, ())), *settled.get(start_us, ())}
        for group in sorted(found, key=lambda each: each.key):
            head = heads.get((group.key, start_us))
            facts = desk.facts(counts, group, start_us)
            if head is not None and facts < head.batches:
                # Retention has taken facts that were settled: what is booked stays as it is.
                yield None, head
                continue
            frame = desk.frame(group, start_us, end_us)
            same = head is not None and frame.digest == head.frame_digest and facts == head.batches
            yield (None if same else frame), head


def _book(db: Database, made: Settlement, head: Head | None, *, now_us: int) -> tuple[bool, int]:
    """Write a settlement after ``head``, and its findings; nothing where somebody else has been there meanwhile."""

    def work(connection: Connection) -> tuple[bool, int]:
        lock(connection, LOCK)
        now = books.head(connection, made.asset_group, made.start_us)
        closed = books.last_closed(connection)
        if now != head or (closed is not None and made.booked_month <= closed):
            return False, 0
        # What a later interval says of its predecessors must see those that were booked since the snapshot was taken.
        same = all(_booked_by(connection, made.asset_group, at_us) == known for at_us, known in made.asked)
        sure = made if same else _again(connection, made)
        books.save(db, connection, sure, head, now_us=now_us)
        _rewrite_memos(connection, made)
        return True, findings.write_findings(connection, _findings(made), now_us=now_us)

    return db.write(work)


def _findings(made: Settlement) -> Iterator[Finding]:
    for note in made.notes:
        code, _, detail = note.partition(": ")
        yield Finding(
            code=code,
            severity=Severity.CRITICAL if code in CRITICAL else Severity.WARNING,
            subject=made.asset_group,
            start_us=made.start_us,
            end_us=made.end_us,
            detail=detail,
        )


def _rewrite_memos(connection: Connection, made: Settlement) -> None:
    """Work out anew the memo lines of later intervals that speak of the one that was just booked."""
    for start_us in books.later_memos(connection, made.asset_group, made.start_us):
        head = books.head(connection, made.asset_group, start_us)
        if head is None:
            continue
        later = _prepared(connection, made.asset_group, start_us, head.end_us)
        if later.inputs_digest == head.inputs_digest:  # else its own settlement writes them, or its facts are gone
            place = (later.asset_group, start_us, later.booked_month, later.month)
            rollups.save_memos(connection, place, later.memos)


def _booked_by(connection: Connection, key: str, start_us: int) -> str | None:
    found = books.head(connection, key, start_us)
    return None if found is None else found.transaction_id


def _again(connection: Connection, made: Settlement) -> Settlement:
    """The same settlement with memo lines of what is booked by now."""
    now = _prepared(connection, made.asset_group, made.start_us, made.end_us)
    return replace(made, memos=now.memos)


def _prepared(connection: Connection, key: str, start_us: int, end_us: int) -> Settlement:
    desk = Desk(connection, terms.read_terms(connection).month(start_us), end_us)
    return desk.settlement(desk.frame(group_of(key), start_us, end_us))
