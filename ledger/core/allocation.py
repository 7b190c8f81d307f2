"""From block time to money, for one settle interval of one asset group (docs/accounts.md).

Invariant: in every segment the lines sum to the bill, to the nano-unit (law 5); nothing is clamped.

The way: what the engine was over time (timeline), the segments of constant terms (segments, pricing), which facts fall
into which (coverage), what each session used (usage, standing), and the division of each segment's bill (dividing).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ledger.core.coverage import SegmentScale, coverage
from ledger.core.dividing import Amounts
from ledger.core.money import apportion
from ledger.core.pricing import WHOLE_PPM
from ledger.core.scraped_time import busy_in, counting, pool_of, with_scraped
from ledger.core.segments import Segment, segments
from ledger.core.settlement import (
    Account,
    Allocation,
    AssetTerms,
    Basis,
    BootFacts,
    IntervalInputs,
    Kind,
    Line,
    PeriodFacts,
    PoolUsage,
    PriceSpan,
    SegmentTerms,
    SessionCost,
    SessionUsage,
    ShareSpan,
    Terms,
)
from ledger.core.timeline import State, apart, timeline, trimmed
from ledger.core.usage import SegmentUse, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.scraped import ScrapedInputs, ScrapedPeriod

__all__ = [
    "Account",
    "Allocation",
    "AssetTerms",
    "Basis",
    "BootFacts",
    "IntervalInputs",
    "Kind",
    "Line",
    "PeriodFacts",
    "PoolUsage",
    "PriceSpan",
    "SegmentTerms",
    "SessionCost",
    "SessionUsage",
    "ShareSpan",
    "Terms",
    "allocate",
]

_STATE_ACCOUNTS = {
    State.OPEN: Account.UNOBSERVED,
    State.UNOBSERVED: Account.UNOBSERVED,
    State.STARTING: Account.STARTING,
    State.VACANT: Account.VACANT,
}


def allocate(inputs: IntervalInputs, scraped: ScrapedInputs | None = None) -> Allocation:
    """Settle one interval of one asset group, under both bases; a provisional one is merely a shorter interval.

    The facts are taken as they are: what breaks a law in them shows in ``findings`` and, where it is money, on the
    lines; the lines sum to the bill all the same.
    """
    terms = inputs.terms
    assert 0 <= terms.cached_weight_milli <= terms.active_weight_milli > 0, terms
    assert 0 <= terms.kv_share_ppm <= WHOLE_PPM, terms
    assert inputs.start_us < inputs.end_us, inputs
    inputs = trimmed(inputs)
    periods, overlapping = apart(inputs.periods)
    inputs = replace(inputs, periods=tuple(periods))
    spans = timeline(inputs)
    records: tuple[ScrapedPeriod, ...] = ()
    if scraped is not None:
        spans, records = with_scraped(spans, scraped), counting(scraped)
    parts = segments(inputs, spans)
    covered = coverage(inputs.periods, spans, parts, terms)
    usage = Usage(covered, inputs.boots, terms, inputs.start_us)
    for facts in overlapping:
        usage.findings.add("overlap", f"boot {facts.boot_id} batch {facts.seq} claims time of another period")
    books = {basis: Amounts(dims=usage.dims, findings=usage.findings) for basis in Basis}
    segment_terms = tuple(
        _settle_scraped(segment, usage, records, books)
        if segment.state is State.SCRAPED
        else _settle(segment, scale, use, terms, books)
        for segment, scale, use in zip(parts, covered.scales, usage.segments, strict=True)
    )
    bills: dict[str, int] = {asset.asset_id: 0 for asset in inputs.assets}
    for segment in parts:
        for part in segment.assets:
            bills[part.asset_id] += part.nanos
    booked, other = books[terms.basis], next(books[basis] for basis in Basis if basis is not terms.basis)
    allocation = Allocation(
        lines=booked.total_lines(),
        asset_credits=tuple(sorted(bills.items())),
        session_costs=booked.session_costs(),
        other_lines=other.total_lines(),
        other_session_costs=other.session_costs(),
        segments=segment_terms,
        usage=usage.sessions(),
        pool=usage.pool(),
        findings=usage.findings.sentences(),
        scraped=pool_of(records, spans),
    )
    bill = sum(bills.values())
    assert sum(line.amount_nanos for line in allocation.lines) == bill, inputs
    assert sum(line.amount_nanos for line in allocation.other_lines) == bill, inputs
    return allocation


def _settle(
    segment: Segment, scale: SegmentScale, use: SegmentUse, terms: Terms, books: dict[Basis, Amounts]
) -> SegmentTerms:
    bill = segment.bill_nanos
    observed_us = scale.observed_us
    observed, lost = apportion(bill, [observed_us, segment.length_us - observed_us], range(2))
    asset_us = sum(part.asset_us for part in segment.assets if part.priced)
    _, lost_asset_us = apportion(asset_us, [observed_us, segment.length_us - observed_us], range(2))
    unpriced_us = sum(part.asset_us for part in segment.assets if not part.priced)
    for amounts in books.values():
        amounts.state(_STATE_ACCOUNTS[segment.state], lost, lost_asset_us)
        amounts.state(Account.UNPRICED, 0, unpriced_us)
    kv_nanos = observed * terms.kv_share_ppm // WHOLE_PPM
    compute_nanos = observed - kv_nanos
    where = f"segment {segment.start_us} to {segment.end_us}"
    books[Basis.CAPACITY].divide(
        kv_nanos,
        segment.blocks * observed_us * scale.scale * terms.active_weight_milli,
        {
            Kind.ACTIVE: _times(use.active, terms.active_weight_milli),
            Kind.CACHED: _times(use.cached, terms.cached_weight_milli),
        },
        f"{where}, blocks",
    )
    books[Basis.FULL].divide(
        kv_nanos,
        scale.full_whole,
        {
            Kind.ACTIVE: _times(use.full_active, terms.active_weight_milli),
            Kind.CACHED: _times(use.full_cached, terms.cached_weight_milli),
        },
        f"{where}, weighted blocks",
    )
    for amounts in books.values():
        amounts.divide(
            compute_nanos,
            max(observed_us * scale.scale, scale.step_scaled),
            {Kind.COMPUTE: use.compute},
            f"{where}, compute",
        )
    return SegmentTerms(
        start_us=segment.start_us,
        end_us=segment.end_us,
        blocks=segment.blocks,
        bill_nanos=bill,
        observed_us=observed_us,
        kv_nanos=kv_nanos,
        compute_nanos=compute_nanos,
        step_us=scale.step_scaled // scale.scale,
        weighted_block_us=scale.weighted_block_us,
    )


def _settle_scraped(
    segment: Segment, usage: Usage, records: Sequence[ScrapedPeriod], books: dict[Basis, Amounts]
) -> SegmentTerms:
    """Watched time of an engine without a hook: busy time is nobody's in particular, the rest is idle."""
    busy = busy_in(records, segment.start_us, segment.end_us)
    weights = {usage.session(dims): us for dims, us in sorted(busy.items())}
    unpriced_us = sum(part.asset_us for part in segment.assets if not part.priced)
    for amounts in books.values():
        amounts.state(Account.UNPRICED, 0, unpriced_us)
        where = f"segment {segment.start_us} to {segment.end_us}, scraped"
        amounts.divide(segment.bill_nanos, segment.length_us, {Kind.COMPUTE: weights}, where)
    return SegmentTerms(
        start_us=segment.start_us,
        end_us=segment.end_us,
        blocks=0,
        bill_nanos=segment.bill_nanos,
        observed_us=segment.length_us,
        kv_nanos=0,
        compute_nanos=segment.bill_nanos,
        step_us=sum(busy.values()),
        weighted_block_us=0,
    )


def _times(weights: dict[int, int], factor: int) -> dict[int, int]:
    return {session: weight * factor for session, weight in weights.items()}
