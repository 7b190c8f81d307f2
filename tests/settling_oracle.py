"""A naive settlement to compare with: fractions, one period after the other, every session in every period.

It shares no arithmetic with ledger.core: it is told by a :class:`World` what was true (the phases of the engine, and in
each period everybody's time, the quiet ones' too), and it books that the long way round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import floor

from settling import BLOCK_SIZE, HOUR, MINUTE, T0, tenant

from ledger.core.allocation import (
    AssetTerms,
    Basis,
    BootFacts,
    IntervalInputs,
    PeriodFacts,
    PriceSpan,
    ShareSpan,
    Terms,
)
from ledger.core.records import (
    PERIOD_US,
    Boot,
    Dimensions,
    Group,
    Holding,
    PoolClose,
    PoolOpen,
    PoolPeriod,
    SessionPeriod,
    StandingCount,
)

SECOND = 1_000_000
NOBODY = tenant("unattributed")
SESSIONS = [
    tenant("A", "a1"), tenant("A", "a2"), tenant("B"), tenant("C", "c1"), tenant("system"), tenant("unattributed"),
]  # fmt: skip

Key = tuple[str, str, str]
"""Account, tenant, kind."""


@dataclass
class Phase:
    """``state`` is ``open`` or the account that unobserved time goes to."""

    start: int
    end: int
    state: str
    blocks: int = 0
    boot: str = ""


@dataclass
class Truth:
    """A delivered period and what it should be booked as: per session (active, cached, compute) time."""

    start: int
    end: int
    charged: bool
    use: dict[Dimensions, tuple[int, int, int]]
    steps: int


@dataclass
class World:
    facts: IntervalInputs
    phases: list[Phase] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)


# --- making a world


def make_world(seed: int) -> World:
    """An hour of an engine that boots, works, sleeps, crashes and loses batches; prices and shares that change."""
    rng = random.Random(seed)
    start, end = T0, T0 + HOUR
    terms = Terms(
        active_weight_milli=2500,
        cached_weight_milli=rng.choice([0, 300, 300, 2500]),
        kv_share_ppm=rng.choice([0, 333_333, 500_000, 1_000_000, 1_000_000]),
        basis=rng.choice(list(Basis)),
    )
    world = World(IntervalInputs(engine="e", start_us=start, end_us=end, assets=_assets(rng), terms=terms))
    boots: list[BootFacts] = []
    periods: list[PeriodFacts] = []
    at = start
    while at < end:
        at = _boot(rng, world, boots, periods, at, end, f"boot-{len(boots)}")
    world.facts = IntervalInputs(
        engine="e",
        start_us=start,
        end_us=end,
        assets=world.facts.assets,
        terms=terms,
        boots=tuple(boots),
        periods=tuple(periods),
    )
    return world


def _assets(rng: random.Random) -> tuple[AssetTerms, ...]:
    found = []
    for i in range(rng.choice([1, 1, 2, 3])):
        cuts = sorted(
            {T0 - rng.randrange(4) * HOUR, *(T0 + PERIOD_US * rng.randrange(1, 240) for _ in range(rng.randrange(3)))}
        )
        prices = []
        for j, cut in enumerate(cuts):
            nanos = None if rng.random() < 0.1 else rng.choice([0, 1, 2_950_000_000, rng.randrange(10**11)])
            until = cuts[j + 1] if j + 1 < len(cuts) else rng.choice([None, None, None, cut + PERIOD_US * 3])
            anchor = rng.choice([None, cut - rng.randrange(HOUR)])
            prices.append(PriceSpan(valid_from_us=cut, valid_to_us=until, nanos_per_hour=nanos, anchor_us=anchor))
        shares = [
            ShareSpan(engine="e", share_ppm=rng.choice([250_000, 500_000]), valid_from_us=T0 - HOUR, valid_to_us=None)
        ]
        for other in ("d", "f"):
            if rng.random() < 0.5:
                since = T0 + rng.randrange(HOUR)
                until = rng.choice([None, since + rng.randrange(1, HOUR)])
                shares.append(
                    ShareSpan(engine=other, share_ppm=rng.randrange(250_001), valid_from_us=since, valid_to_us=until)
                )
        if rng.random() < 0.2:  # a second part of the same asset, at an odd moment
            shares.append(ShareSpan(engine="e", share_ppm=1, valid_from_us=T0 + rng.randrange(HOUR), valid_to_us=None))
        found.append(AssetTerms(asset_id=f"gpu-{i}", prices=tuple(prices), shares=tuple(shares)))
    return tuple(found)


def _boot(
    rng: random.Random,
    world: World,
    boots: list[BootFacts],
    periods: list[PeriodFacts],
    at: int,
    end: int,
    boot_id: str,
) -> int:
    """One boot from ``at`` on; the moment at which the next may begin."""
    started = at
    opens, closes = [], []
    last_end: int | None = None
    seq, gap = 1, False
    at = min(end, at + rng.choice([0, 1, rng.randrange(1, 5 * MINUTE)]))
    if at > started:
        world.phases.append(Phase(started, at, "starting"))
    after = 0
    crashed = False
    while at < end:
        blocks = rng.choice([7, 100, 1000])
        opens.append(PoolOpen(pool="kv", at_us=at, blocks=blocks, groups=(Group(block_size=BLOCK_SIZE),)))
        until = min(end, at + rng.choice([rng.randrange(1, MINUTE), rng.randrange(1, 30 * MINUTE), HOUR]))
        phase = Phase(at, until, "open", blocks, boot_id)
        world.phases.append(phase)
        seq, last, gap = _pool(rng, world, periods, phase, seq, gap=gap)
        last_end = last or last_end
        at = until
        if at >= end:
            last_end = end
            break
        if rng.random() < 0.4:
            crashed = True
            break
        closes.append(PoolClose(pool="kv", at_us=at, reason=rng.choice(["shutdown", "sleep"])))
        away = min(end, at + rng.choice([0, rng.randrange(1, 10 * MINUTE)]))
        if away > at:
            world.phases.append(Phase(at, away, "vacant"))
        at = away
        if rng.random() < 0.5:
            break
    after = at
    if crashed and at < end:
        # What follows the last period that was delivered is unobserved until the next boot, 15 minutes at most.
        after = min(end, at + rng.randrange(1, 25 * MINUTE))
        heard = max(last_end or started, opens[-1].at_us, *(c.at_us for c in closes), started)
        silent = min(max(heard + 15 * MINUTE, opens[-1].at_us), after)
        phase = world.phases[-1]
        phase.end = min(silent, after)
        if phase.end < after:
            world.phases.append(Phase(phase.end, after, "vacant"))
    boots.append(
        BootFacts(
            boot=Boot(boot_id=boot_id, anchor_us=started, started_us=started),
            opens=tuple(opens),
            closes=tuple(closes),
            last_end_us=last_end,
        )
    )
    return after


def _pool(
    rng: random.Random, world: World, periods: list[PeriodFacts], phase: Phase, seq: int, *, gap: bool
) -> tuple[int, int | None, bool]:
    """The periods of an open pool; the next seq, the end of the last delivered one, whether batches were lost since."""
    counts: dict[Dimensions, int] = {}
    last = None
    at = phase.start
    known = seq > 1  # a pool that is opened anew begins with nothing cached
    first = True
    while at < phase.end:
        stop = min(phase.end, at - at % PERIOD_US + PERIOD_US)
        lost = rng.random() < 0.05
        stand = (first and not known) or rng.random() < 0.03
        first = first and lost
        facts, truth = _period(rng, phase, seq, at, stop, counts, known=known, stand=stand, gap=gap)
        if lost:
            known, gap = False, True
        else:
            known = known or stand
            gap = False
            last = stop
            periods.append(facts)
            world.truths.append(truth)
        seq += 1
        at = stop
    return seq, last, gap


def _period(
    rng: random.Random,
    phase: Phase,
    seq: int,
    start: int,
    end: int,
    counts: dict[Dimensions, int],
    *,
    known: bool,
    stand: bool,
    gap: bool,
) -> tuple[PeriodFacts, Truth]:
    length, blocks = end - start, phase.blocks
    left = blocks * length
    rows: dict[Dimensions, tuple[int, int, int]] = {}
    quiet = dict(counts)
    candidates = [dims for dims in SESSIONS if dims.tenant != "system"] if rng.random() < 0.7 else SESSIONS[-2:]
    busy = [dims for dims in candidates if rng.random() < 0.4]
    left -= sum(count for dims, count in quiet.items() if dims not in busy) * length
    spare = blocks - sum(count for dims, count in quiet.items() if dims not in busy)
    steps_left = length
    for dims in busy:
        active = min(left, rng.choice([0, rng.randrange(blocks * length + 1) // 3]))
        left -= active
        cached = min(left, rng.randrange(blocks * length + 1) // 4)
        left -= cached
        compute = rng.choice([0, rng.randrange(steps_left + 1) // 2])
        steps_left -= compute
        rows[dims] = active, cached, compute
        after = rng.choice([0, rng.randrange(spare + 1)])
        spare -= after
        counts[dims] = after
        quiet.pop(dims, None)
    quiet = {dims: count for dims, count in quiet.items() if count}
    active = sum(a for a, _, _ in rows.values())
    cached = sum(c for _, c, _ in rows.values()) + sum(quiet.values()) * length
    steps = sum(k for _, _, k in rows.values())
    facts = PeriodFacts(
        boot_id=phase.boot,
        seq=seq,
        start_us=start,
        end_us=end,
        pool=PoolPeriod(
            pool="kv",
            blocks=blocks,
            active_block_us=active,
            cached_block_us=cached,
            free_block_us=blocks * length - active - cached,
            step_us=steps,
        ),
        sessions=tuple(
            SessionPeriod(
                pool="kv",
                dims=dims,
                holding=Holding(active_block_us=a, held_slot_us=a * BLOCK_SIZE),
                cached_block_us=c,
                cached_blocks_end=counts[dims],
                compute_us=k,
            )
            for dims, (a, c, k) in rows.items()
        ),
        standing=tuple(StandingCount(pool="kv", dims=d, cached_blocks=n) for d, n in counts.items() if n)
        if stand
        else None,
        gap_before=gap,
    )
    use = dict(rows)
    for dims, count in quiet.items():
        owner = dims if known or stand else NOBODY
        a, c, k = use.get(owner, (0, 0, 0))
        use[owner] = a, c + count * length, k
    charged = any(a > 0 and dims.tenant != "system" for dims, (a, _, _) in rows.items())
    return facts, Truth(start, end, charged, use, steps)


# --- settling it the long way round


def hamilton(total: int, exact: dict[object, Fraction]) -> dict[object, int]:
    """Largest remainder of parts that sum to ``total``; ties to the key that comes first in the mapping."""
    order = list(exact)
    found = {key: floor(exact[key]) for key in order}
    rest = total - sum(found.values())
    for key in sorted(order, key=lambda k: (-(exact[k] - floor(exact[k])), order.index(k)))[:rest]:
        found[key] += 1
    assert sum(found.values()) == total
    return found


def bill_of(asset: AssetTerms, engine: str | None, start: int, end: int) -> int:
    """Nanos of ``[start, end)``, in which price and shares are constant: differences of the price's pieces."""
    price = next(
        (p for p in asset.prices if p.valid_from_us <= start and (p.valid_to_us is None or start < p.valid_to_us)), None
    )
    if price is None or price.nanos_per_hour is None:
        return 0
    anchor = price.valid_from_us if price.anchor_us is None else price.anchor_us
    now = [s for s in asset.shares if s.valid_from_us <= start and (s.valid_to_us is None or start < s.valid_to_us)]

    def piece(at: int) -> int:
        nanos = price.nanos_per_hour or 0
        total = nanos * (at - anchor) // HOUR
        ppm = {name: sum(s.share_ppm for s in now if s.engine == name) for name in sorted({s.engine for s in now})}
        exact = {name: Fraction(total * part, 1_000_000) for name, part in ppm.items()}
        exact[""] = Fraction(total * (1_000_000 - sum(ppm.values())), 1_000_000)
        return hamilton(total, dict(exact)).get(engine or "", 0)

    return piece(end) - piece(start)


def settle(world: World) -> tuple[dict[Basis, dict[Key, int]], dict[Basis, dict[tuple[Dimensions, str], int]], int]:
    """Lines and session costs under both bases, and the bill."""
    facts = world.facts
    cuts = {facts.start_us, facts.end_us}
    for before, phase in pairwise(world.phases):
        # A pool that closes and is opened anew at once, as large as it was, goes on as far as money is concerned.
        if (before.state, before.boot, before.blocks) != (phase.state, phase.boot, phase.blocks):
            cuts |= {before.end, phase.start}
    cuts |= {world.phases[0].start, world.phases[-1].end} if world.phases else set()
    for asset in facts.assets:
        for price in asset.prices:
            cuts |= {price.valid_from_us, price.valid_to_us or facts.end_us}
            # Who has a share of an asset matters while it is paid for.
            for share in asset.shares:
                cuts |= {
                    t
                    for t in (share.valid_from_us, share.valid_to_us or facts.end_us)
                    if price.valid_from_us <= t < (price.valid_to_us or facts.end_us)
                }
    edges = sorted(cut for cut in cuts if facts.start_us <= cut <= facts.end_us)
    segments = _joined(world, edges)
    lines: dict[Basis, dict[Key, int]] = {basis: {} for basis in Basis}
    costs: dict[Basis, dict[tuple[Dimensions, str], int]] = {basis: {} for basis in Basis}
    bill = 0
    for start, end, phase in segments:
        amount = sum(bill_of(asset, "e", start, end) for asset in facts.assets)
        bill += amount
        inside = [
            (truth, Fraction(min(end, truth.end) - max(start, truth.start), truth.end - truth.start))
            for truth in world.truths
            if truth.start < end and truth.end > start and phase.state == "open"
        ]
        observed_us = sum((truth.end - truth.start) * part for truth, part in inside)
        length = end - start
        halves = hamilton(
            amount,
            {
                "seen": amount * observed_us / Fraction(length),
                "lost": amount * (length - observed_us) / Fraction(length),
            },
        )
        account = "unobserved" if phase.state == "open" else phase.state
        kv = halves["seen"] * facts.terms.kv_share_ppm // 1_000_000
        for basis in Basis:
            _add(lines[basis], (account, "", ""), halves["lost"])
            _kv(facts.terms, basis, phase.blocks, Fraction(observed_us), kv, inside, lines[basis], costs[basis])
            _compute(Fraction(observed_us), halves["seen"] - kv, inside, lines[basis], costs[basis])
    return lines, costs, bill


def _joined(world: World, edges: list[int]) -> list[tuple[int, int, Phase]]:
    def phase_at(at: int) -> Phase:
        return next((p for p in world.phases if p.start <= at < p.end), Phase(0, 0, "vacant"))

    return [(a, b, phase_at(a)) for a, b in pairwise(edges)]


def _kv(terms, basis, blocks, observed, kv, inside, lines, costs) -> None:  # type: ignore[no-untyped-def]
    if not observed:
        return
    exact: dict[tuple[Dimensions, str], Fraction] = {}
    for truth, part in inside:
        length = (truth.end - truth.start) * part
        whole = sum(a * terms.active_weight_milli + c * terms.cached_weight_milli for a, c, _ in truth.use.values())
        for dims, (active, cached, _) in truth.use.items():
            if basis is Basis.CAPACITY:
                block_us = Fraction(kv) / (blocks * observed)
                _add(exact, (dims, "active"), active * part * block_us)
                if truth.charged:
                    ratio = Fraction(terms.cached_weight_milli, terms.active_weight_milli)
                    _add(exact, (dims, "cached"), cached * part * ratio * block_us)
            elif truth.charged and whole:
                of_period = kv * length / observed
                _add(exact, (dims, "active"), of_period * active * terms.active_weight_milli / whole)
                _add(exact, (dims, "cached"), of_period * cached * terms.cached_weight_milli / whole)
    _book(kv, exact, lines, costs)


def _compute(observed, amount, inside, lines, costs) -> None:  # type: ignore[no-untyped-def]
    if not observed:
        return
    steps = sum(truth.steps * part for truth, part in inside)
    exact: dict[tuple[Dimensions, str], Fraction] = {}
    for truth, part in inside:
        for dims, (_, _, compute) in truth.use.items():
            _add(exact, (dims, "compute"), amount * compute * part / max(observed, steps))
    _book(amount, exact, lines, costs)


def _book(amount, exact, lines, costs) -> None:  # type: ignore[no-untyped-def]
    by_line: dict[object, Fraction] = {}
    for dims, kind in sorted(exact, key=lambda key: (key[0].tenant, key[1])):
        _add(by_line, (dims.tenant, kind), exact[dims, kind])
    by_line["idle"] = amount - sum(by_line.values())
    for key, nanos in hamilton(amount, by_line).items():
        if key == "idle":
            _add(lines, ("idle", "", ""), nanos)
            continue
        tenant_name, kind = key
        _add(lines, ("tenant", tenant_name, kind), nanos)
        whole = by_line[key]
        if whole:
            sessions = {
                dims: nanos * exact[dims, kind] / whole
                for dims in sorted(dims for dims, k in exact if (dims.tenant, k) == key)
            }
            for dims, part in hamilton(nanos, sessions).items():
                _add(costs, (dims, kind), part)


def _add(sums, key, value) -> None:  # type: ignore[no-untyped-def]
    sums[key] = sums.get(key, 0) + value
