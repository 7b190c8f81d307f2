"""What every asset costs and who has it, resolved from append-only rows and from what engines saw.

Invariants:

* an asset is paid for while it is *covered*: a registered one from its registration until it is retired, a
  discovered one while an engine or an agent sees its GPU (sights at most 15 minutes apart are one stay); an instant
  without a price is covered and unpriced, never free;
* at any instant the shares of an asset sum to at most 1 000 000;
* whatever lies outside an interval leaves its terms alone, so that the digest of a settled interval changes
  only with what really concerns it.

Pure: rows and sights in, :class:`~ledger.core.allocation.AssetTerms` out. The words are OpenCost's (asset,
idle, shared); the rule that a price list is looked up by validity is FOCUS' charge period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from ledger.core.allocation import AssetTerms, PriceSpan, ShareSpan
from ledger.core.money import apportion
from ledger.core.pricing import WHOLE_PPM

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SIGHT_GAP_US = 900_000_000
"""Sights at most 15 minutes apart are one stay; a crashed engine is expected back for as long."""


class AssetKind(StrEnum):
    """What is paid for: a GPU, or anything else (a host)."""

    GPU = "gpu"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A thing that is paid for by the hour from ``valid_from_us`` until ``valid_to_us`` (None: until retired)."""

    asset_id: str
    kind: AssetKind = AssetKind.GPU
    model: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    cluster: str = ""
    capacity_type: str = ""
    valid_from_us: int
    valid_to_us: int | None = None
    discovered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price of one asset (``asset_id``), or a rule: an empty field matches anything."""

    price_id: int = 0
    asset_id: str = ""
    model: str = ""
    cluster: str = ""
    capacity_type: str = ""
    nanos_per_hour: int
    valid_from_us: int
    valid_to_us: int | None = None

    def matches(self, asset: Asset) -> bool:
        """Whether the price speaks of ``asset``."""
        if self.asset_id:
            return self.asset_id == asset.asset_id
        return (
            self.model in ("", asset.model)
            and self.cluster in ("", asset.cluster)
            and self.capacity_type in ("", asset.capacity_type)
        )

    @property
    def precedence(self) -> tuple[int, int, int]:
        """The asset's own price beats rules, the narrower rule the wider; then the later validity, the later row."""
        narrow = 8 * bool(self.asset_id) + 4 * bool(self.model) + 2 * bool(self.cluster) + bool(self.capacity_type)
        return narrow, self.valid_from_us, self.price_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """``share_ppm`` of an asset belongs to ``engine``, by somebody's word."""

    asset_id: str
    engine: str
    share_ppm: int = WHOLE_PPM
    valid_from_us: int
    valid_to_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A GPU was seen over ``[start_us, end_us)``; ``tail_us``: after a crash its engine still has it for so long.

    An agent that saw it has no part of it: ``engine`` is empty then.
    """

    engine: str
    cluster: str = ""
    gpu_uuid: str
    gpu_model: str = ""
    share_ppm: int | None = None
    start_us: int
    end_us: int
    tail_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    engine: str
    share_ppm: int | None
    stated: bool
    start_us: int
    end_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Every row that counts, and every sight since the start of the month that is asked about."""

    assets: tuple[Asset, ...] = ()
    prices: tuple[Price, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    sights: tuple[Sight, ...] = ()
    _discovered: list[Asset] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        self._discovered.extend(discovered_assets(self.assets, self.sights))

    def all_assets(self) -> tuple[Asset, ...]:
        """Registered assets and the stays of discovered ones (several stays of one GPU share its id), in order."""
        return tuple(sorted((*self.assets, *self._discovered), key=lambda a: (a.asset_id, a.valid_from_us)))

    def terms(self, start_us: int, end_us: int) -> tuple[AssetTerms, ...]:
        """What each asset that is covered in ``[start_us, end_us)`` costs and who has it, by asset id."""
        by_id: dict[str, list[Asset]] = {}
        for asset in self.all_assets():
            if _overlaps(asset.valid_from_us, asset.valid_to_us, start_us, end_us):
                by_id.setdefault(asset.asset_id, []).append(asset)
        return tuple(
            AssetTerms(
                asset_id=asset_id,
                prices=_price_spans(stays, self.prices, start_us, end_us),
                shares=_share_spans(self._claims(stays[0]), start_us, end_us),
            )
            for asset_id, stays in sorted(by_id.items())
        )

    def _claims(self, asset: Asset) -> list[_Claim]:
        claims = [
            _Claim(engine=a.engine, share_ppm=a.share_ppm, stated=True, start_us=a.valid_from_us, end_us=a.valid_to_us)
            for a in self.assignments
            if a.asset_id == asset.asset_id
        ]
        if asset.uuid:
            claims += [
                _Claim(
                    engine=s.engine,
                    share_ppm=s.share_ppm,
                    stated=False,
                    start_us=s.start_us,
                    end_us=s.end_us + s.tail_us,
                )
                for s in self.sights
                if s.gpu_uuid == asset.uuid and s.engine
            ]
        return claims


def unassigned(terms: AssetTerms, start_us: int, end_us: int) -> bool:
    """Whether some of the asset belongs to nobody in some part of ``[start_us, end_us)``."""
    edges = {edge for p in terms.prices for edge in (p.valid_from_us, p.valid_to_us)}
    edges |= {edge for s in terms.shares for edge in (s.valid_from_us, s.valid_to_us)}
    cuts = {start_us, *(edge for edge in edges if edge is not None and start_us < edge < end_us)}
    return any(
        _at(terms.prices, at_us) and sum(s.share_ppm for s in _at(terms.shares, at_us)) < WHOLE_PPM for at_us in cuts
    )


def discovered_assets(registered: Sequence[Asset], sights: Sequence[Sight]) -> list[Asset]:
    """The stays of every GPU that was seen and is not registered for that time; the GPU's uuid is its id."""
    by_uuid: dict[str, list[Sight]] = {}
    for sight in sights:
        if sight.gpu_uuid:
            by_uuid.setdefault(sight.gpu_uuid, []).append(sight)
    found = []
    for uuid, seen in sorted(by_uuid.items()):
        seen.sort(key=lambda s: (s.start_us, s.end_us, s.engine))
        known = [(a.valid_from_us, a.valid_to_us) for a in registered if a.uuid == uuid]
        for start_us, end_us in _subtract(_merge([(s.start_us, s.end_us) for s in seen], SIGHT_GAP_US), known):
            first = seen[0]
            found.append(
                Asset(
                    asset_id=uuid,
                    model=first.gpu_model,
                    uuid=uuid,
                    cluster=first.cluster,
                    valid_from_us=start_us,
                    valid_to_us=end_us,
                    discovered=True,
                )
            )
    return found


_Span = TypeVar("_Span", PriceSpan, ShareSpan)


def _at(spans: Sequence[_Span], at_us: int) -> list[_Span]:
    return [s for s in spans if s.valid_from_us <= at_us and (s.valid_to_us is None or s.valid_to_us > at_us)]


def _overlaps(from_us: int, to_us: int | None, start_us: int, end_us: int) -> bool:
    return from_us < end_us and (to_us is None or to_us > max(start_us, from_us))


def _merge(spans: Iterable[tuple[int, int]], gap_us: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start_us, end_us in sorted(spans):
        if merged and start_us - merged[-1][1] <= gap_us:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_us))
        else:
            merged.append((start_us, end_us))
    return merged


def _subtract(spans: Iterable[tuple[int, int]], taken: Sequence[tuple[int, int | None]]) -> list[tuple[int, int]]:
    left = list(spans)
    for from_us, to_us in taken:
        kept = []
        for start_us, end_us in left:
            kept.append((start_us, min(end_us, from_us)))
            if to_us is not None:
                kept.append((max(start_us, to_us), end_us))
        left = kept
    return [(start_us, end_us) for start_us, end_us in sorted(left) if start_us < end_us]


def _price_spans(stays: Sequence[Asset], prices: Sequence[Price], start_us: int, end_us: int) -> tuple[PriceSpan, ...]:
    """The resolved prices over each stay, those kept that touch the interval; an end beyond it is left open."""
    spans: list[PriceSpan] = []
    for stay in stays:
        rows = [p for p in prices if p.matches(stay)]
        cuts = {stay.valid_from_us}
        for row in rows:
            cuts |= {
                t
                for t in (row.valid_from_us, row.valid_to_us)
                if t is not None and t > stay.valid_from_us and (stay.valid_to_us is None or t < stay.valid_to_us)
            }
        edges: list[int | None] = [*sorted(cuts), stay.valid_to_us]
        resolved: list[tuple[int, int | None, Price | None]] = []
        for from_us, to_us in pairwise(edges):
            assert from_us is not None
            valid = [
                p for p in rows if p.valid_from_us <= from_us and (p.valid_to_us is None or p.valid_to_us > from_us)
            ]
            best = max(valid, key=lambda p: p.precedence, default=None)
            if resolved and resolved[-1][2] is best:
                resolved[-1] = (resolved[-1][0], to_us, best)
            else:
                resolved.append((from_us, to_us, best))
        spans += [
            PriceSpan(
                valid_from_us=from_us,
                valid_to_us=to_us if to_us is not None and to_us < end_us else None,
                nanos_per_hour=best.nanos_per_hour if best else None,
                anchor_us=best.valid_from_us if best else None,
            )
            for from_us, to_us, best in resolved
            if _overlaps(from_us, to_us, start_us, end_us)
        ]
    return tuple(sorted(spans, key=lambda s: s.valid_from_us))


def _share_spans(claims: Sequence[_Claim], start_us: int, end_us: int) -> tuple[ShareSpan, ...]:
    """Each engine's share over time; spans that touch the interval, an end beyond it left open."""
    cuts = sorted({t for c in claims for t in (c.start_us, c.end_us) if t is not None and t < end_us})
    spans: list[ShareSpan] = []
    last: dict[str, int] = {}
    for index, from_us in enumerate(cuts):
        to_us = cuts[index + 1] if index + 1 < len(cuts) else None
        for engine, share_ppm in _shares_at(claims, from_us):
            previous = last.get(engine)
            if (
                previous is not None
                and spans[previous].valid_to_us == from_us
                and spans[previous].share_ppm == share_ppm
            ):
                joined = spans[previous]
                spans[previous] = ShareSpan(
                    engine=engine, share_ppm=share_ppm, valid_from_us=joined.valid_from_us, valid_to_us=to_us
                )
            else:
                last[engine] = len(spans)
                spans.append(ShareSpan(engine=engine, share_ppm=share_ppm, valid_from_us=from_us, valid_to_us=to_us))
    return tuple(
        sorted(
            (s for s in spans if _overlaps(s.valid_from_us, s.valid_to_us, start_us, end_us)),
            key=lambda s: (s.valid_from_us, s.engine),
        )
    )


def _shares_at(claims: Sequence[_Claim], at_us: int) -> list[tuple[str, int]]:
    """The shares at an instant: stated ones first, the rest equally among those who merely see the asset."""
    now = [c for c in claims if c.start_us <= at_us and (c.end_us is None or c.end_us > at_us)]
    stated: dict[str, int] = {}
    for claim in now:
        if claim.stated:
            stated[claim.engine] = stated.get(claim.engine, 0) + (claim.share_ppm or 0)
    by_word = set(stated)
    for claim in now:
        if not claim.stated and claim.share_ppm is not None and claim.engine not in by_word:
            stated[claim.engine] = max(stated.get(claim.engine, 0), claim.share_ppm)
    seers = sorted({c.engine for c in now if not c.stated and c.share_ppm is None} - set(stated))
    total = sum(stated.values())
    if total > WHOLE_PPM:
        # Only facts can bring this about (an explicit sum above the whole is refused): everybody is cut alike.
        stated = dict(zip(stated, apportion(WHOLE_PPM, list(stated.values()), list(stated)), strict=True))
        total = WHOLE_PPM
    equal = apportion(WHOLE_PPM - total, [1] * len(seers), seers) if seers else []
    return sorted((engine, share) for engine, share in (*stated.items(), *zip(seers, equal, strict=True)) if share)
