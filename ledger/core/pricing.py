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
from ledger.core.periods import HOUR_US, on_grid
from ledger.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def check_asset(asset: AssetTerms) -> Refusal | None:
    """Why these terms cannot be booked, or None: what every price and share must obey.

    Prices do not overlap, are not negative and lie on the 15-second grid; shares are within 0 … 1 000 000 millionths
    and sum to no more than that at any instant.
    """
    last_end: int | None = 0
    for price in asset.prices:
        if price.nanos_per_hour is not None and price.nanos_per_hour < 0:
            detail = f"{asset.asset_id}: a price of {price.nanos_per_hour} nanos an hour is below 0: correct the price"
            return Refusal(reason="price_negative", detail=detail)
        for edge in (price.valid_from_us, price.valid_to_us):
            if edge is not None and price.nanos_per_hour is not None and not on_grid(edge):
                detail = f"{asset.asset_id}: a price changes at {edge} µs, off the 15-second grid: move it to the grid"
                return Refusal(reason="price_off_grid", detail=detail)
        if last_end is None or price.valid_from_us < last_end:
            detail = (
                f"{asset.asset_id}: two prices are valid at {price.valid_from_us} µs: end the first before the second"
            )
            return Refusal(reason="price_overlap", detail=detail)
        last_end = price.valid_to_us
    return check_shares(asset.asset_id, asset.shares)


def check_shares(asset_id: str, shares: Sequence[ShareSpan]) -> Refusal | None:
    """Why these shares of one asset cannot stand together, or None."""
    for share in shares:
        if not 0 <= share.share_ppm <= WHOLE_PPM:
            detail = f"{asset_id}: a share of {share.share_ppm} ppm is outside 0 … {WHOLE_PPM}: correct the share"
            return Refusal(reason="share_range", detail=detail)
        if share.valid_to_us is not None and share.valid_to_us < share.valid_from_us:
            detail = f"{asset_id}: a share ends at {share.valid_to_us} µs, before it begins: correct its validity"
            return Refusal(reason="share_validity", detail=detail)
    for at_us in sorted({share.valid_from_us for share in shares}):
        total = sum(ppm for _, ppm in _shares_at(shares, at_us))
        if total > WHOLE_PPM:
            detail = f"{asset_id}: shares at {at_us} µs sum to {total} ppm, the most is {WHOLE_PPM}: lower or end one"
            return Refusal(reason="share_sum", detail=detail)
    return None


def divide_asset(stated: Mapping[str, int], unstated: Iterable[str]) -> tuple[tuple[str, int], ...] | Refusal:
    """Shares in millionths of one asset at one instant, by engine.

    ``stated`` shares stand as they are; the engines of ``unstated`` that state none have what is left equally (the
    odd millionths go to the first names). Stated shares above the whole are refused.
    """
    total = sum(stated.values())
    if total > WHOLE_PPM:
        detail = f"shares sum to {total} ppm, the most is {WHOLE_PPM}: lower or end one"
        return Refusal(reason="share_sum", detail=detail)
    equal = sorted(set(unstated) - set(stated))
    parts = apportion(WHOLE_PPM - total, [1] * len(equal), equal) if equal else []
    return tuple(sorted((*stated.items(), *zip(equal, parts, strict=True))))


def memory_share_ppm(instance_bytes: int, device_bytes: int) -> int | Refusal:
    """A MIG instance's share of its GPU: its memory over the device's, rounded down, so that a full set fits."""
    if not 0 < instance_bytes <= device_bytes:
        detail = (
            f"an instance of {instance_bytes} bytes on a device of {device_bytes}: it is from 1 to the device's size"
        )
        return Refusal(reason="share_memory", detail=detail)
    return instance_bytes * WHOLE_PPM // device_bytes


def _shares_at(shares: Sequence[ShareSpan], at_us: int) -> tuple[tuple[str, int], ...]:
    total: dict[str, int] = {}
    for share in shares:
        if share.valid_from_us <= at_us and (share.valid_to_us is None or at_us < share.valid_to_us):
            total[share.engine] = total.get(share.engine, 0) + share.share_ppm
    return tuple(sorted(total.items()))
