"""Which segment the facts of a period fall into, and how much each of them weighs there.

Invariant: the pieces of a period sum to the period, exactly. A period lies in one segment as a rule; where a share of
a GPU changes in the middle of it (another engine booted beside this one), its facts count as spread evenly over it,
and every quantity of the segment is scaled so that even such a piece is an integer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.core.records import SYSTEM
from ledger.core.timeline import Span, covered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.segments import Segment
    from ledger.core.settlement import PeriodFacts, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of a period that lies in one segment.

    A quantity ``q`` of the whole period counts as ``q * weight`` in the segment's scaled units; of a period that is
    not idle, the full basis gives ``(active * w_active + cached * w_cached) * full_weight`` of
    :attr:`SegmentScale.full_whole`.
    """

    segment: int
    length_us: int
    weight: int
    full_weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentScale:
    """Totals of a segment's observed time. ``scale``: how many scaled units make one unit."""

    scale: int
    observed_us: int
    full_whole: int
    step_scaled: int
    weighted_block_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredPeriod:
    """A period with the time that its pool was open, and its pieces. ``charged``: not idle (see :func:`is_charged`)."""

    facts: PeriodFacts
    length_us: int
    charged: bool
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The periods in order, and the scale of each segment by its index."""

    periods: tuple[CoveredPeriod, ...]
    scales: tuple[SegmentScale, ...]


def is_charged(facts: PeriodFacts) -> bool:
    """Whether somebody other than ``system`` had an active block: else the period's cache is idle capacity."""
    return any(row.holding.active_block_us > 0 and row.dims.tenant != SYSTEM for row in facts.sessions)


def coverage(
    periods: Sequence[PeriodFacts], spans: Sequence[Span], segments: Sequence[Segment], terms: Terms
) -> Coverage:
    """Place every period of a paying pool; those before the first segment have no pieces."""
    starts = [segment.start_us for segment in segments]
    cuts: list[list[tuple[int, int]]] = []
    lengths: list[int] = []
    scales = [1] * len(segments)
    for facts in periods:
        within = facts.pool is not None and facts.start_us >= starts[0]
        parts = covered(spans, facts) if within else []
        length = sum(end - start for start, end in parts)
        places = _places(parts, starts, segments)
        for index, part_us in places:
            if part_us != length:
                scales[index] = math.lcm(scales[index], length)
        cuts.append(places)
        lengths.append(length)
    charged = [is_charged(facts) for facts in periods]
    wholes = [1] * len(segments)
    for facts, is_busy, places in zip(periods, charged, cuts, strict=True):
        weighted = _weighted(facts, terms)
        if is_busy and weighted:
            for index, _ in places:
                wholes[index] = math.lcm(wholes[index], weighted)
    observed, steps, weighted_sums = [0] * len(segments), [0] * len(segments), [0] * len(segments)
    found = []
    for facts, is_busy, length, places in zip(periods, charged, lengths, cuts, strict=True):
        weighted = _weighted(facts, terms) if is_busy else 0
        pieces = []
        for index, part_us in places:
            weight = scales[index] * part_us // length
            full_weight = part_us * (wholes[index] // weighted) if weighted else 0
            pieces.append(Piece(segment=index, length_us=part_us, weight=weight, full_weight=full_weight))
            observed[index] += part_us
            steps[index] += weight * (facts.pool.step_us if facts.pool else 0)
            weighted_sums[index] += weighted * part_us // length
        found.append(CoveredPeriod(facts=facts, length_us=length, charged=is_busy, pieces=tuple(pieces)))
    return Coverage(
        periods=tuple(found),
        scales=tuple(
            SegmentScale(
                scale=scales[i],
                observed_us=observed[i],
                full_whole=wholes[i] * observed[i],
                step_scaled=steps[i],
                weighted_block_us=weighted_sums[i],
            )
            for i in range(len(segments))
        ),
    )


def _places(
    parts: Sequence[tuple[int, int]], starts: Sequence[int], segments: Sequence[Segment]
) -> list[tuple[int, int]]:
    places = []
    for start, end in parts:
        index = bisect_right(starts, start) - 1
        while index < len(segments) and segments[index].start_us < end:
            part_us = min(end, segments[index].end_us) - max(start, segments[index].start_us)
            places.append((index, part_us))
            index += 1
    return places


def _weighted(facts: PeriodFacts, terms: Terms) -> int:
    pool = facts.pool
    if pool is None:
        return 0
    return pool.active_block_us * terms.active_weight_milli + pool.cached_block_us * terms.cached_weight_milli
