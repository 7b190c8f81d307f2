"""The segments of an interval: the longest parts in which prices, shares, boot, blocks and openness are constant.

Invariant: the segments of a group tile its interval, and their bills are the group's parts of its assets' bills.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ledger.core.pricing import VACANT_PART, AssetSegment, asset_segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.settlement import IntervalInputs
    from ledger.core.timeline import Span, State


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetPart:
    """What a group has of one asset in a segment, and pays for it; ``priced`` is false where nobody knows a price."""

    asset_id: str
    nanos: int
    asset_us: int
    priced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the interval in which all that decides about money is constant."""

    start_us: int
    end_us: int
    state: State
    boot_id: str
    blocks: int
    assets: tuple[AssetPart, ...]

    @property
    def length_us(self) -> int:
        return self.end_us - self.start_us

    @property
    def bill_nanos(self) -> int:
        return sum(part.nanos for part in self.assets)


def segments(inputs: IntervalInputs, spans: Sequence[Span]) -> tuple[Segment, ...]:
    """The segments of the interval, in order, without a hole."""
    engine = inputs.engine
    priced = [
        segment
        for asset in inputs.assets
        for segment in asset_segments(asset, inputs.start_us, inputs.end_us)
        if _has_part(segment, engine)
    ]
    edges = {inputs.start_us, inputs.end_us}
    edges.update(edge for segment in priced for edge in (segment.start_us, segment.end_us))
    edges.update(edge for span in spans for edge in (span.start_us, span.end_us))
    cuts = sorted(edges)
    found = []
    position = 0
    for start, end in pairwise(cuts):
        while spans[position].end_us <= start:
            position += 1
        span = spans[position]
        parts = tuple(
            AssetPart(
                asset_id=segment.asset_id,
                nanos=segment.nanos(engine, start, end),
                asset_us=segment.asset_us(engine, start, end),
                priced=segment.price.nanos_per_hour is not None,
            )
            for segment in priced
            if segment.start_us <= start and end <= segment.end_us
        )
        found.append(
            Segment(
                start_us=start,
                end_us=end,
                state=span.state,
                boot_id=span.boot_id,
                blocks=span.blocks,
                assets=parts,
            )
        )
    return tuple(found)


def _has_part(segment: AssetSegment, engine: str | None) -> bool:
    return engine is VACANT_PART or any(name == engine for name, _ in segment.shares)
