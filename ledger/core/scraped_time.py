"""The time of an engine that is looked at from outside, and the money of it (docs/accounts.md).

Invariants: what a hook claims is the hook's, so only time that it leaves vacant can be scraped; of watched time, what
was busy is ``unattributed`` / ``compute`` and the rest ``idle``, to the nano-unit; a gap after watched time is
``unobserved`` for at most 15 minutes, as after a crash; time from the start of a process to its first answer is
``starting``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ledger.core.periods import SILENCE_US
from ledger.core.records import UNATTRIBUTED, Dimensions, PoolPeriod, Preemptions, SessionPeriod, Tokens
from ledger.core.settlement import PoolUsage, SessionUsage
from ledger.core.timeline import Span, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ledger.core.scraped import ScrapedInputs, ScrapedPeriod

SCRAPED_SESSION: Final = "scraped"
"""The session of what is scraped: nobody knows whose requests they were."""

SCRAPED_POOL: Final = ""
"""The pool's name in roll-ups, which no engine can have given one of its own."""


def dims_of(record: ScrapedPeriod) -> Dimensions:
    """Who a scraped engine's busy time belongs to."""
    return Dimensions(tenant=UNATTRIBUTED, session=SCRAPED_SESSION, model=record.model)


def counting(scraped: ScrapedInputs) -> tuple[ScrapedPeriod, ...]:
    """The records that no hook overrules: after a clean close the process is asleep or ends, until it is another one.

    Where no start of the process is told, it counts as another one 15 minutes after the close.
    """
    closed_us = scraped.hook_closed_us
    if closed_us is None:
        return scraped.records
    return tuple(
        record
        for record in scraped.records
        if (
            record.started_us > closed_us
            if record.started_us is not None
            else record.end_us <= closed_us or record.start_us >= closed_us + SILENCE_US
        )
    )


def with_scraped(spans: Sequence[Span], scraped: ScrapedInputs) -> tuple[Span, ...]:
    """The timeline of a hook, with what was scraped where it says ``vacant``."""
    told = _told(counting(scraped), scraped, spans[-1].end_us)
    found: list[Span] = []
    for span in spans:
        for part in _parts(span, told) if span.state is State.VACANT else [span]:
            if found and found[-1].same_as(part):
                found[-1] = replace(found[-1], end_us=part.end_us)
            else:
                found.append(part)
    return tuple(found)


def busy_in(records: Iterable[ScrapedPeriod], start_us: int, end_us: int) -> dict[Dimensions, int]:
    """Busy time within ``[start_us, end_us)``, by whose it is; of a record that is cut, its busy time comes first."""
    found: dict[Dimensions, int] = {}
    for record in records:
        part = min(end_us, record.start_us + record.busy_us) - max(start_us, record.start_us)
        if part > 0:
            dims = dims_of(record)
            found[dims] = found.get(dims, 0) + part
    return found


def pool_of(
    records: Sequence[ScrapedPeriod], spans: Sequence[Span]
) -> tuple[PoolUsage, tuple[SessionUsage, ...]] | None:
    """What the scraped spans hold: time, busy time as steps, tokens; None where there are none."""
    watched = [span for span in spans if span.state is State.SCRAPED]
    if not watched:
        return None
    busy: dict[Dimensions, int] = {}
    for span in watched:
        for dims, us in busy_in(records, span.start_us, span.end_us).items():
            busy[dims] = busy.get(dims, 0) + us
    within = [r for r in records if any(s.start_us < r.end_us and r.start_us < s.end_us for s in watched)]
    rows = {dims: SessionPeriod(pool=SCRAPED_POOL, dims=dims, compute_us=us) for dims, us in busy.items()}
    for record in within:
        dims = dims_of(record)
        row = rows.get(dims, SessionPeriod(pool=SCRAPED_POOL, dims=dims))
        rows[dims] = replace(
            row,
            tokens=Tokens(
                computed=row.tokens.computed + (record.computed_tokens or 0),
                transferred=row.tokens.transferred + (record.transferred_tokens or 0),
                output=row.tokens.output + (record.output_tokens or 0),
            ),
            preemptions=Preemptions(other=row.preemptions.other + (record.preemptions or 0)),
        )
    totals = PoolPeriod(
        pool=SCRAPED_POOL,
        blocks=0,
        active_block_us=0,
        cached_block_us=0,
        free_block_us=0,
        step_us=sum(busy.values()),
    )
    sessions = tuple(
        SessionUsage(dims=dims, row=row, cached_charged_block_us=0, weighted_milliunits=0)
        for dims, row in sorted(rows.items())
        if row != SessionPeriod(pool=SCRAPED_POOL, dims=dims)
    )
    return PoolUsage(totals=totals, observed_us=sum(s.end_us - s.start_us for s in watched)), sessions


def _told(records: Sequence[ScrapedPeriod], scraped: ScrapedInputs, end_us: int) -> list[Span]:
    """What scraping says of the time, in order and apart; it says nothing where no record was before."""
    found: list[Span] = []
    heard_us = scraped.heard_us
    for record in records:
        if heard_us is not None and heard_us < record.start_us:
            found += _gap(heard_us, record.start_us, scraped.hook_closed_us, record.started_us)
        found.append(Span(start_us=record.start_us, end_us=record.end_us, state=State.SCRAPED))
        heard_us = record.end_us
    if heard_us is not None and heard_us < end_us:
        found += _gap(heard_us, end_us, scraped.hook_closed_us, None)
    return found


def _gap(from_us: int, to_us: int, closed_us: int | None, started_us: int | None) -> list[Span]:
    """A gap in what was watched, up to the next answer of a process that began at ``started_us``."""
    found = []
    if closed_us is None or closed_us < from_us - SILENCE_US:
        until_us = min(to_us, from_us + SILENCE_US)
    else:
        until_us = min(to_us, max(from_us, closed_us))  # the hook closed cleanly: then nothing is missing
    began_us = to_us
    if started_us is not None and from_us < started_us < to_us:
        began_us = started_us
        until_us = min(until_us, began_us)
    if from_us < until_us:
        found.append(Span(start_us=from_us, end_us=until_us, state=State.UNOBSERVED))
    if began_us < to_us:
        found.append(Span(start_us=began_us, end_us=to_us, state=State.STARTING))
    return found


def _parts(span: Span, told: Sequence[Span]) -> list[Span]:
    """A vacant span with what is told of it."""
    found: list[Span] = []
    at_us = span.start_us
    for each in told:
        start_us, end_us = max(each.start_us, at_us), min(each.end_us, span.end_us)
        if start_us >= end_us:
            continue
        if at_us < start_us:
            found.append(replace(span, start_us=at_us, end_us=start_us))
        found.append(replace(each, start_us=start_us, end_us=end_us))
        at_us = end_us
    if at_us < span.end_us:
        found.append(replace(span, start_us=at_us))
    return found
