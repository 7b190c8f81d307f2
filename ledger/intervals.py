"""One interval of one asset group: what goes into its settlement, and what comes out, not written anywhere yet.

Invariants: the same rows give the same settlement, whoever asks and when; settling, the provisional figures of the
open hour, a report over a part of an hour and the audit all come through here, so they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from ledger.core.allocation import allocate
from ledger.core.digests import digest
from ledger.core.journal import asset_group, engine_group
from ledger.core.periods import HOUR_US, SILENCE_US, month_after
from ledger.core.records import PERIOD_US
from ledger.core.settlement import AssetTerms, Basis, IntervalInputs, Kind
from ledger.core.timeline import trimmed
from ledger.lookout import Lookout
from ledger.pricebook import PriceBook, unassigned
from ledger.store import books, inputs, prices, terms
from ledger.store.books import Memo, PoolRollup, Settlement
from ledger.store.sample_sights import agent_sights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ledger.core.records import Dimensions
    from ledger.core.scraped import ScrapedInputs
    from ledger.core.settlement import Allocation, SegmentTerms
    from ledger.store.database import Connection
    from ledger.store.inputs import BadEnd, EngineBoot


RATES_KEPT = 8
"""Intervals whose rates are kept while a month is prepared: few requests live longer; those cost a second look."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AssetGroup:
    """An engine with its parts of assets, or an asset by itself for its unassigned rest."""

    engine: str | None = None
    asset_id: str = ""

    @property
    def key(self) -> str:
        return asset_group(self.asset_id) if self.engine is None else engine_group(self.engine)


def group_of(key: str) -> AssetGroup:
    """The group that a stored key names."""
    kind, _, name = key.partition(":")
    return AssetGroup(engine=name) if kind == "engine" else AssetGroup(asset_id=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """All that a settlement depends on but the periods: ``pools`` are (name, paying, inputs without periods).

    ``scraped`` is what was looked at from outside, without its records; None where nothing was.
    """

    group: AssetGroup
    pools: tuple[tuple[str, bool, IntervalInputs], ...]
    digest: str
    scraped: ScrapedInputs | None = None


class Desk:
    """Prepares settlements of the intervals of one month, from one snapshot of the store."""

    def __init__(self, connection: Connection, month: str, until_us: int) -> None:
        self._connection = connection
        self.ledger = terms.read_terms(connection)
        self.month = month
        self.terms = self.ledger.terms(month)
        self.start_us, end_us = self.ledger.month_bounds(month)
        self.end_us = min(end_us, until_us)
        self.boots = inputs.load_boots(connection, self.start_us, self.end_us)
        self._book = PriceBook(
            assets=prices.list_assets(connection),
            prices=prices.list_prices(connection),
            assignments=prices.list_assignments(connection),
            sights=(
                *inputs.sights(connection, self.boots, self.start_us, self.end_us),
                *agent_sights(connection, self.start_us, self.end_us),
            ),
        )
        self._reader = inputs.PeriodReader(connection)
        self._lookout = Lookout(connection)
        self._assets: tuple[int, int, tuple[AssetTerms, ...]] = (0, 0, ())
        self._seen: dict[tuple[str, int], _Rates] = {}
        self._asked: dict[int, str | None] = {}
        closed = books.last_closed(connection)
        self.booked_month = month if closed is None or month > closed else month_after(closed)

    def intervals(self) -> Iterator[tuple[int, int]]:
        """The settle intervals of the month that are over at ``until_us``."""
        length_us = self.ledger.interval_us
        for start_us in range(self.start_us, self.end_us - length_us + 1, length_us):
            yield start_us, start_us + length_us

    def assets(self, start_us: int, end_us: int) -> tuple[AssetTerms, ...]:
        """The terms of every asset that is paid for in the interval."""
        if self._assets[:2] != (start_us, end_us):
            self._assets = (start_us, end_us, self._book.terms(start_us, end_us))
        return self._assets[2]

    def groups(self, start_us: int, end_us: int, reporting: Iterable[str]) -> list[AssetGroup]:
        """The asset groups of an interval: engines with assets or facts (``reporting``), assets with a rest."""
        assets = self.assets(start_us, end_us)
        engines = set(reporting) | {share.engine for asset in assets for share in asset.shares}
        rests = [asset.asset_id for asset in assets if unassigned(asset, start_us, end_us)]
        return [AssetGroup(engine=engine) for engine in sorted(engines)] + [
            AssetGroup(asset_id=asset_id) for asset_id in sorted(rests)
        ]

    def facts(self, counts: Mapping[tuple[str, int], int], group: AssetGroup, start_us: int) -> int:
        """How many facts the interval depends on: those of its UTC hour up to its end."""
        if group.engine is None:
            return 0
        length_us = self.ledger.interval_us
        first = start_us - start_us % HOUR_US
        return sum(counts.get((group.engine, at_us), 0) for at_us in range(first, start_us + length_us, length_us))

    def frame(self, group: AssetGroup, start_us: int, end_us: int) -> Frame:
        """Everything but the periods, and its digest."""
        if group.engine is None:
            assets = tuple(a for a in self.assets(start_us, end_us) if a.asset_id == group.asset_id)
        else:
            assets = tuple(a for a in self.assets(start_us, end_us) if any(s.engine == group.engine for s in a.shares))
        boots = self._boots(group, start_us, end_us)
        pools = tuple(
            (
                name,
                paying,
                trimmed(
                    IntervalInputs(
                        engine=group.engine,
                        start_us=start_us,
                        end_us=end_us,
                        assets=assets if paying else (),
                        terms=self.terms,
                        boots=tuple(boot.facts(pool) for boot in boots if (pool := _pool(boot, name, paying=paying))),
                    )
                ),
            )
            for name, paying in _pools(boots)
        )
        named = tuple((name, paying) for name, paying, _ in pools)
        said = (group.key, self.month, self.ledger.currency, named)
        scraped = self._lookout.frame(group.engine, start_us, end_us)
        outside = () if scraped is None else (scraped,)
        return Frame(
            group=group,
            pools=pools,
            digest=digest(said, *(without for _, _, without in pools), *outside),
            scraped=scraped,
        )

    def settlement(self, frame: Frame) -> Settlement:
        """Load the periods, allocate, and work out what is kept beside the journal."""
        group = frame.group
        start_us, end_us = frame.pools[0][2].start_us, frame.pools[0][2].end_us
        scope_us = start_us - start_us % HOUR_US
        boots = self._boots(group, scope_us, end_us)
        headers = inputs.load_headers(self._connection, boots, scope_us, end_us)
        names = {boot.number: boot.boot.boot_id for boot in boots}
        seen = tuple((names[h.boot], h.seq, h.digest, h.lost) for h in headers)
        scraped = frame.scraped
        if scraped is not None:
            scraped = self._lookout.filled(scraped, group.engine, start_us, end_us)
        outside = () if scraped is None else scraped.records
        allocation: Allocation | None = None
        rollups = []
        for name, paying, without in frame.pools:
            of_boot = {boot.number: _pool(boot, name, paying=paying) for boot in boots}
            periods = self._reader.periods(boots, of_boot, start_us, end_us)
            done = allocate(replace(without, periods=periods), scraped if paying else None)
            if paying:
                allocation = done
            if done.pool is not None:
                pool = name or done.pool.totals.pool
                rollups.append(PoolRollup(pool=pool, paying=paying, usage=done.pool, sessions=done.usage))
        assert allocation is not None, frame
        if allocation.scraped is not None:
            used, sessions = allocation.scraped
            rollups.append(PoolRollup(pool=used.totals.pool, paying=True, usage=used, sessions=sessions))
        made = Settlement(
            asset_group=group.key,
            engine=group.engine,
            start_us=start_us,
            end_us=end_us,
            month=self.month,
            booked_month=self.booked_month,
            booked_us=end_us if self.booked_month == self.month else self.ledger.month_bounds(self.booked_month)[0],
            currency=self.ledger.currency,
            batches=len(headers)
            + sum(header.lost for header in headers)
            + self._lookout.count(group.engine, scope_us, end_us),
            frame_digest=frame.digest,
            inputs_digest=digest((frame.digest, seen), *outside),
            booked_basis=self.terms.basis,
            allocation=allocation,
            memos=(),
            notes=allocation.findings,
            asked=(),
            pools=tuple(rollups),
        )
        if group.engine is None:
            return made
        notes = _notes(made, sum(header.lost for header in headers))
        self._remember(made)
        bad = self._reader.bad_ends(boots, start_us, end_us)
        self._asked = {}
        memos = (*self._usage_memos(made), *self._end_memos(made, bad))
        return replace(
            made, notes=(*allocation.findings, *notes), memos=memos, asked=tuple(sorted(self._asked.items()))
        )

    def _boots(self, group: AssetGroup, start_us: int, end_us: int) -> list[EngineBoot]:
        return [
            boot
            for boot in self.boots
            if boot.engine == group.engine and boot.boot.started_us < end_us and boot.heard_us > start_us - SILENCE_US
        ]

    # --- memo lines: waste by kind, which may overlap and is never summed ---------------------------------

    def _usage_memos(self, made: Settlement) -> Iterator[Memo]:
        """What follows from the interval's own rows: cached, unfilled, recomputed, rejected."""
        paying = next((pool for pool in made.pools if pool.paying), None)
        used: dict[str, list[int]] = {}
        for usage in paying.sessions if paying else ():
            sums = used.setdefault(usage.dims.tenant, [0] * 6)
            row, tokens = usage.row, usage.row.tokens
            scheduled = tokens.computed + tokens.recomputed + tokens.output + tokens.rejected
            for index, value in enumerate(
                (
                    usage.cached_charged_block_us,
                    row.holding.unfilled_slot_us,
                    row.holding.held_slot_us,
                    tokens.recomputed,
                    tokens.rejected,
                    scheduled,
                )
            ):
                sums[index] += value
        costs: dict[tuple[Basis, str, Kind], int] = {}
        for basis, line in made.lines():
            key = (basis, line.tenant, line.kind)
            costs[key] = costs.get(key, 0) + line.amount_nanos
        for basis in Basis:
            for tenant, (cached, unfilled, held, recomputed, rejected, scheduled) in sorted(used.items()):
                active, compute = costs.get((basis, tenant, Kind.ACTIVE), 0), costs.get((basis, tenant, Kind.COMPUTE))
                for memo, quantity, amount in (
                    ("cached", cached, costs.get((basis, tenant, Kind.CACHED), 0)),
                    ("unfilled", unfilled, active * unfilled // held if held else 0),
                    ("recomputed", recomputed, None if compute is None else _part(compute, recomputed, scheduled)),
                    ("rejected", rejected, None if compute is None else _part(compute, rejected, scheduled)),
                ):
                    if quantity or amount:
                        yield Memo(
                            memo=memo,
                            basis=basis,
                            tenant=tenant,
                            use_start_us=made.start_us,
                            quantity=quantity,
                            amount_nanos=amount,
                        )

    def _end_memos(self, made: Settlement, bad: Sequence[BadEnd]) -> Iterator[Memo]:
        """What requests cost that ended aborted or abandoned here, by the interval and segment in which it arose."""
        length_us = self.ledger.interval_us
        by_use: dict[int, list[BadEnd]] = {}
        for end in bad:
            by_use.setdefault(end.start_us - end.start_us % length_us, []).append(end)
        for use_start_us, ends in sorted(by_use.items()):
            rates = self._rates_of(made, use_start_us)
            quantity: dict[tuple[str, str], int] = {}
            capacity: dict[tuple[str, str], Fraction] = {}
            full: dict[tuple[str, str], Fraction] = {}
            for end in ends:
                key = (end.outcome, end.dims.tenant)
                quantity[key] = quantity.get(key, 0) + end.active_block_us
                capacity[key] = capacity.get(key, Fraction(0)) + _block_cost(rates.segments, end)
                nanos, active_block_us = rates.sessions.get(end.dims, (0, 0))
                if active_block_us:
                    full[key] = full.get(key, Fraction(0)) + Fraction(nanos * end.active_block_us, active_block_us)
            for (outcome, tenant), block_us in sorted(quantity.items()):
                for basis, cost in ((Basis.CAPACITY, capacity), (Basis.FULL, full)):
                    yield Memo(
                        memo=outcome,
                        basis=basis,
                        tenant=tenant,
                        use_start_us=use_start_us,
                        quantity=block_us,
                        amount_nanos=int(cost.get((outcome, tenant), 0)),
                    )

    def _rates_of(self, made: Settlement, use_start_us: int) -> _Rates:
        """What a block and a session cost in the interval of use: this one, one prepared before, or a stored one."""
        if use_start_us == made.start_us:
            return _rates(made)
        key = (made.asset_group, use_start_us)
        if key not in self._seen:
            segments = books.segment_terms(self._connection, *key)
            head = books.head(self._connection, *key)
            self._asked[use_start_us] = None if head is None else head.transaction_id
            stored = books.session_rate(self._connection, *key, Basis.FULL)
            dims = self._reader.dimensions(stored)
            return _Rates(segments=segments, sessions={dims[number]: rate for number, rate in stored.items()})
        return self._seen[key]

    def _remember(self, made: Settlement) -> None:
        """Keep the rates for the intervals after this one, which the snapshot of a long run would not show."""
        self._seen[made.asset_group, made.start_us] = _rates(made)
        self._seen.pop((made.asset_group, made.start_us - RATES_KEPT * self.ledger.interval_us), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """What memo lines are worked out from; ``sessions``: active cost under the full basis, and active block time."""

    segments: Sequence[SegmentTerms]
    sessions: Mapping[Dimensions, tuple[int, int]]


def _rates(made: Settlement) -> _Rates:
    nanos: dict[Dimensions, int] = {}
    for basis, cost in made.session_costs():
        if basis is Basis.FULL and cost.kind is Kind.ACTIVE:
            nanos[cost.dims] = nanos.get(cost.dims, 0) + cost.amount_nanos
    paying = next((pool for pool in made.pools if pool.paying), None)
    return _Rates(
        segments=made.allocation.segments,
        sessions={
            usage.dims: (nanos.get(usage.dims, 0), usage.row.holding.active_block_us)
            for usage in (paying.sessions if paying else ())
        },
    )


def _pools(boots: Sequence[EngineBoot]) -> list[tuple[str, bool]]:
    """The paying pool, whatever its name in each boot (so no name is given here), then the others by name."""
    others = sorted({name for boot in boots for name, paying in boot.pools().items() if not paying})
    return [("", True), *((name, False) for name in others)]


def _pool(boot: EngineBoot, name: str, *, paying: bool) -> str:
    """The name of the boot's pool that is meant; empty where it has none such."""
    pools = boot.pools()
    if paying:
        return next((pool for pool, pays in pools.items() if pays), "")
    return name if pools.get(name) is False else ""


def _notes(made: Settlement, lost: int) -> Iterator[str]:
    """What the allocation cannot know of, as ``code: sentence``."""
    if lost:
        yield f"lost_period: {lost} batches lie in the time of a boot that was accepted earlier, and do not count"
    if not made.allocation.asset_credits and any(pool.paying for pool in made.pools):
        yield "no_asset: the engine reports use and nothing that is paid for is assigned to it"


def _part(amount: int, quantity: int, whole: int) -> int:
    return amount * quantity // whole if whole else 0


def _block_cost(segments: Sequence[SegmentTerms], end: BadEnd) -> Fraction:
    for segment in segments:
        if segment.start_us <= end.start_us < segment.end_us and segment.blocks and segment.observed_us:
            return Fraction(segment.kv_nanos * end.active_block_us, segment.blocks * segment.observed_us)
    return Fraction(0)


def open_boundary(boots: Sequence[EngineBoot], now_us: int, scraped_us: Iterable[int] = ()) -> int:
    """The last boundary that every open pool has delivered, at most 60 s before ``now_us``.

    ``scraped_us`` are the ends of what was last known of engines that are looked at from outside.
    """
    floor_us = now_us - 4 * PERIOD_US
    floor_us -= floor_us % PERIOD_US
    newest = {boot.engine: boot for boot in boots}  # by start, so a boot that was replaced holds nobody back
    delivered = [
        boot.last_end_us or boot.boot.started_us
        for boot in newest.values()
        if boot.opens and len(boot.closes) < len(boot.opens) and boot.heard_us > now_us - SILENCE_US
    ]
    delivered += [at_us for at_us in scraped_us if at_us > now_us - SILENCE_US]
    latest = min(delivered, default=now_us)
    return max(floor_us, min(latest - latest % PERIOD_US, now_us - now_us % PERIOD_US))
