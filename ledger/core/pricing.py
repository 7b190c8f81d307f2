"""What an asset costs over an interval, and which part of that an engine has.

Invariants:

* any partition of time sums to the whole bill, because a bill is a difference of one cumulative function;
* at every instant the parts of an asset (its engines' and the ``vacant`` rest) sum to its bill, because each part is
  a difference of the pieces of one division; so engines that share a GPU settle apart from each other, in intervals
  and segments of their own, and still close to the nano-unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ledger.core.money import apportion
from ledger.core.periods import HOUR_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.settlement import AssetTerms, PriceSpan, ShareSpan

WHOLE_PPM = 1_000_000

VACANT_PART = None
"""In place of an engine: the part of an asset that no engine has."""


def cumulative(span: PriceSpan, at_us: int) -> int:
    """Nanos from the price's own start to ``at_us``: ``floor(price * (t - valid_from) / 3600 s)``; 0 if unpriced."""
    anchor_us = span.valid_from_us if span.anchor_us is None else span.anchor_us
    assert at_us >= span.valid_from_us >= anchor_us, (span, at_us)
    return (span.nanos_per_hour or 0) * (at_us - anchor_us) // HOUR_US


def bill(span: PriceSpan, start_us: int, end_us: int) -> int:
    """Nanos of ``[start_us, end_us)``, which lies within ``span``."""
    return cumulative(span, end_us) - cumulative(span, start_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetSegment:
    """A part of the time of one asset in which its price and its shares are constant.

    ``shares`` are ``(engine, share_ppm)`` by engine, each engine once.
    """

    asset_id: str
    start_us: int
    end_us: int
    price: PriceSpan
    shares: tuple[tuple[str, int], ...]

    def nanos(self, engine: str | None, start_us: int, end_us: int) -> int:
        """What ``engine`` (None: the vacant rest) pays for ``[start_us, end_us)`` within this segment."""
        return self._piece(engine, cumulative(self.price, end_us)) - self._piece(
            engine, cumulative(self.price, start_us)
        )

    def asset_us(self, engine: str | None, start_us: int, end_us: int) -> int:
        """The asset time that ``engine`` (None: the vacant rest) has of ``[start_us, end_us)``."""
        return self._piece(engine, end_us) - self._piece(engine, start_us)

    def _piece(self, engine: str | None, total: int) -> int:
        parts = [ppm for _, ppm in self.shares]
        vacant = WHOLE_PPM - sum(parts)
        assert vacant >= 0, self
        # Ties go by the engines' names, the vacant rest last: its key is larger than any name's index.
        pieces = apportion(total, [*parts, vacant], range(len(parts) + 1))
        if engine is VACANT_PART:
            return pieces[-1]
        return sum(piece for piece, (name, _) in zip(pieces, self.shares, strict=False) if name == engine)


def asset_segments(asset: AssetTerms, start_us: int, end_us: int) -> tuple[AssetSegment, ...]:
    """The parts of ``[start_us, end_us)`` in which ``asset`` is paid for, at constant price and shares, in order."""
    edges = sorted({edge for share in asset.shares for edge in (share.valid_from_us, share.valid_to_us) if edge})
    segments = []
    for price in asset.prices:
        price_end = end_us if price.valid_to_us is None else min(price.valid_to_us, end_us)
        cuts = [price.valid_from_us, *(edge for edge in edges if price.valid_from_us < edge < price_end), price_end]
        for origin, stop in pairwise(cuts):
            if max(origin, start_us) < stop:
                segments.append(
                    AssetSegment(
                        asset_id=asset.asset_id,
                        start_us=max(origin, start_us),
                        end_us=stop,
                        price=price,
                        shares=_shares_at(asset.shares, origin),
                    )
                )
    return tuple(segments)


def _shares_at(shares: Sequence[ShareSpan], at_us: int) -> tuple[tuple[str, int], ...]:
    total: dict[str, int] = {}
    for share in shares:
        if share.valid_from_us <= at_us and (share.valid_to_us is None or at_us < share.valid_to_us):
            total[share.engine] = total.get(share.engine, 0) + share.share_ppm
    return tuple(sorted(total.items()))
