"""What an engine was, over time: open, starting, unobserved or vacant; and which facts cover which part of that.

Invariant: the spans of a timeline tile its interval, and what covers them is decided by facts alone: opens, closes,
boots and the ends of valid periods, never by the clock of who asks.

A boot's life: *starting* from its start until a pool opens, *open* until the pool closes. Without a close the pool
stays open (and its time is unobserved) until the next boot, at most 15 minutes after the last that was heard of it;
then, as after a close, the assets are *vacant*. A close with reason ``off`` is no clean close: the engine runs on and
merely the hook has gone, so that time is unobserved as after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from ledger.core.periods import SILENCE_US
from ledger.core.records import HOOK_OFF
from ledger.core.settlement import BootFacts, IntervalInputs, PeriodFacts, PriceSpan, ShareSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class State(StrEnum):
    OPEN = "open"
    STARTING = "starting"
    UNOBSERVED = "unobserved"
    VACANT = "vacant"
    SCRAPED = "scraped"
    """No hook claims it, and the engine was looked at from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A state that holds over ``[start_us, end_us)``; ``boot_id`` and ``blocks`` where it is open."""

    start_us: int
    end_us: int
    state: State
    boot_id: str = ""
    blocks: int = 0

    def same_as(self, other: Span) -> bool:
        """Whether both tell the same, whenever they do."""
        return (self.state, self.boot_id, self.blocks) == (other.state, other.boot_id, other.blocks)


def trimmed(inputs: IntervalInputs) -> IntervalInputs:
    """The inputs without what cannot matter to the interval because it lies outside.

    An engine that lives on does not change an hour that has passed: the end of its last period, a close or a boot
    that comes later, and the end of a price are cut off at the interval's end; where a price or a share began before
    the interval does not matter either. Settlement and the inputs' digest both begin here.
    """
    start_us, end_us = inputs.start_us, inputs.end_us
    return replace(
        inputs,
        assets=tuple(
            replace(
                asset,
                prices=tuple(_price_within(p, start_us, end_us) for p in asset.prices if _touches(p, start_us, end_us)),
                shares=tuple(_within(s, start_us, end_us) for s in asset.shares if _touches(s, start_us, end_us)),
            )
            for asset in inputs.assets
        ),
        boots=tuple(_trimmed_boot(boot, end_us) for boot in inputs.boots if boot.boot.started_us < end_us),
        periods=tuple(period for period in inputs.periods if period.end_us <= end_us),
    )


def apart(periods: Sequence[PeriodFacts]) -> tuple[list[PeriodFacts], list[PeriodFacts]]:
    """The periods that claim time for themselves alone, in the order given; and those that come too late for it.

    The store has settled who came first already; this is for facts that are broken nevertheless.
    """
    taken: list[tuple[int, int]] = []
    lost: list[PeriodFacts] = []
    for facts in periods:
        if facts.pool is None or facts.start_us >= facts.end_us:
            continue
        at = bisect_right(taken, (facts.start_us, facts.end_us))
        clear = (at == 0 or taken[at - 1][1] <= facts.start_us) and (at == len(taken) or facts.end_us <= taken[at][0])
        if clear:
            taken.insert(at, (facts.start_us, facts.end_us))
        else:
            lost.append(facts)
    gone = {id(facts) for facts in lost}
    return [facts for facts in periods if id(facts) not in gone], lost


def timeline(inputs: IntervalInputs) -> tuple[Span, ...]:
    """The states of the engine over the interval, in order, without a hole and none equal to its neighbour."""
    spans = [Span(start_us=inputs.start_us, end_us=inputs.end_us, state=State.VACANT)]
    for boot in sorted(inputs.boots, key=lambda facts: (facts.boot.started_us, facts.boot.boot_id)):
        for span in _life(boot, inputs.end_us):
            spans = _painted(spans, span)
    # A valid period proves an open pool, whatever was lost of its opening or claimed by a later boot.
    for period in inputs.periods:
        for span in _missing(spans, period):
            spans = _painted(spans, span)
    return tuple(spans)


def covered(spans: Sequence[Span], period: PeriodFacts) -> list[tuple[int, int]]:
    """The parts of ``period`` in which its own pool is open: one, save where a pool closed or opened within it."""
    assert period.pool is not None
    first = max(bisect_right(spans, period.start_us, key=lambda span: span.start_us) - 1, 0)
    parts: list[tuple[int, int]] = []
    for span in spans[first:]:
        if span.start_us >= period.end_us:
            break
        start, end = max(span.start_us, period.start_us), min(span.end_us, period.end_us)
        if start < end and span.same_as(_proof(period)):
            parts.append((start, end))
    return parts


def _proof(period: PeriodFacts) -> Span:
    assert period.pool is not None
    return Span(
        start_us=period.start_us,
        end_us=period.end_us,
        state=State.OPEN,
        boot_id=period.boot_id,
        blocks=period.pool.blocks,
    )


def _missing(spans: Sequence[Span], period: PeriodFacts) -> Iterator[Span]:
    if period.pool is None or period.start_us >= period.end_us:
        return
    parts = covered(spans, period)
    length = sum(end - start for start, end in parts)
    pool = period.pool
    whole = pool.active_block_us + pool.cached_block_us + pool.free_block_us
    if not parts or (length < period.end_us - period.start_us and whole > pool.blocks * length):
        yield _proof(period)


def _life(facts: BootFacts, end_us: int) -> Iterator[Span]:
    boot_id = facts.boot.boot_id
    # At one instant a close comes before an open: the pool is opened anew.
    events = sorted(
        [(close.at_us, 0, State.UNOBSERVED if close.reason == HOOK_OFF else State.VACANT, 0) for close in facts.closes]
        + [(opened.at_us, 1, State.OPEN, opened.blocks) for opened in facts.opens]
    )
    state, since, blocks = State.STARTING, facts.boot.started_us, 0
    heard = max([since, facts.last_end_us or since, *(event[0] for event in events)])
    for at_us, _, next_state, next_blocks in [*events, (end_us, 2, State.VACANT, 0)]:
        span = Span(start_us=since, end_us=at_us, state=state)
        if state is State.OPEN:
            span = replace(span, boot_id=boot_id, blocks=blocks)
        stop = at_us
        if state is State.UNOBSERVED:
            stop = since + SILENCE_US
        elif at_us > heard:
            # Only the last state can outlast what was heard of the boot: for as long as silence may.
            stop = heard + SILENCE_US
        yield from _until(span, stop)
        state, since, blocks = next_state, at_us, next_blocks


def _until(span: Span, stop_us: int) -> Iterator[Span]:
    if span.state is State.VACANT or span.end_us <= stop_us:
        yield span
    else:
        yield replace(span, end_us=stop_us)
        yield Span(start_us=stop_us, end_us=span.end_us, state=State.VACANT)


def _painted(spans: list[Span], new: Span) -> list[Span]:
    start, end = max(new.start_us, spans[0].start_us), min(new.end_us, spans[-1].end_us)
    if start >= end:
        return spans
    before = [replace(s, end_us=min(s.end_us, start)) for s in spans if s.start_us < start]
    after = [replace(s, start_us=max(s.start_us, end)) for s in spans if s.end_us > end]
    painted: list[Span] = []
    for span in (*before, replace(new, start_us=start, end_us=end), *after):
        if painted and painted[-1].same_as(span):
            painted[-1] = replace(painted[-1], end_us=span.end_us)
        else:
            painted.append(span)
    return painted


_Validity = TypeVar("_Validity", PriceSpan, ShareSpan)


def _touches(span: PriceSpan | ShareSpan, start_us: int, end_us: int) -> bool:
    return span.valid_from_us < end_us and (span.valid_to_us is None or span.valid_to_us > start_us)


def _within(span: _Validity, start_us: int, end_us: int) -> _Validity:
    to_us = span.valid_to_us
    return replace(
        span,
        valid_from_us=max(span.valid_from_us, start_us),
        valid_to_us=to_us if to_us is not None and to_us < end_us else None,
    )


def _price_within(span: PriceSpan, start_us: int, end_us: int) -> PriceSpan:
    anchor_us = span.valid_from_us if span.anchor_us is None else span.anchor_us
    return _within(replace(span, anchor_us=anchor_us), start_us, end_us)


def _trimmed_boot(facts: BootFacts, end_us: int) -> BootFacts:
    events_us = [opened.at_us for opened in facts.opens] + [close.at_us for close in facts.closes]
    heard = max([facts.last_end_us or facts.boot.started_us, *events_us])
    return replace(
        facts,
        opens=tuple(opened for opened in facts.opens if opened.at_us < end_us),
        closes=tuple(close for close in facts.closes if close.at_us < end_us),
        last_end_us=end_us if heard >= end_us else facts.last_end_us,
    )
