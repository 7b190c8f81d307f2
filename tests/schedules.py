"""Seeded random schedules of an engine's events, and their comparison with the oracle.

``python tests/schedules.py SEED`` repeats one of them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from fractions import Fraction

from oracle import NOBODY, SYSTEM, Oracle, OracleRequest

from ledger.core.records import (
    PERIOD_US,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    Origin,
    Outcome,
    PreemptionReason,
    Source,
    Tokens,
)
from ledger.hook.meter import Meter

SOURCE = Source(engine="engine", origin=Origin.SIMULATED)
MIDNIGHT = 1_793_664_000_000_000
ENDS = [Outcome.FINISHED, Outcome.ABORTED, Outcome.ABANDONED, Outcome.FAILED]


class Driver:
    """Tells the meter and the oracle the same, and keeps just enough to say only what can be."""

    def __init__(self, seed: int, events: int | None = None) -> None:
        self.random = rng = random.Random(seed)
        self.seed = seed
        self.batches: list = []
        self.t = rng.choice([0, 7, 10**9, 123_456_789_012, -5_000_000])
        self.anchor = MIDNIGHT + rng.choice([0, 1, rng.randrange(3_700_000_000)]) - self.t
        self.speculates = rng.random() < 0.3
        self.asynchronous = rng.random() < 0.3
        self.tidy = rng.random() < 0.7
        """Whether blocks are taken before the tokens that need them are scheduled."""
        self.later = rng.random() < 0.3
        """Whether periods are settled only at the end."""
        self.events = events or rng.choice([20, 40, 80, 120])
        self.names = 0
        self.live: dict[str, dict] = {}
        self.flight: list[dict[str, int]] = []
        self.boots = 0
        self.meters: list[Meter] = []
        self.start_boot()

    def start_boot(self) -> None:
        rng = self.random
        boot = Boot(boot_id=f"boot-{self.boots}", anchor_us=self.anchor, started_us=self.anchor + self.t)
        self.boots += 1
        self.first_batch = len(self.batches)
        self.oracle = Oracle(self.anchor, boot.started_us)
        self.meter = Meter(SOURCE, boot, self.batches.append, settle_later=self.later)
        self.meter.skew_us = rng.choice([0, -3, 250_000])
        self.meters.append(self.meter)
        self.live, self.flight, self.pools = {}, [], []
        self.pass_time()
        for i in range(rng.choice([1, 1, 1, 2])):
            if i:
                self.pass_time()
            self.open_pool(i)

    def open_pool(self, i: int) -> None:
        rng = self.random
        groups = [Group(block_size=rng.choice([1, 2, 4, 16]))]
        while rng.random() < 0.3 and len(groups) < 3:
            groups.append(
                Group(block_size=rng.choice([2, 4, 32]), kind=rng.choice([GroupKind.SLIDING, GroupKind.STATE]))
            )
        size = rng.choice([6, 12, 24, 24, 40, 80] if rng.random() < 0.98 else [500, 2000])
        first = rng.choice([0, 1])
        cached = list(range(first, first + rng.choice([0, 0, 3])))
        more = {
            "blocks": size,
            "groups": tuple(groups),
            "paying": i == 0 or (rng.random() < 0.1 and False),
            "cached": cached,
            "lookahead_tokens": rng.choice([0, 0, 0, 1, 3, 5]),
        }
        name = ["device", "host"][i]
        self.pools.append(
            {
                "name": name,
                "groups": groups,
                "meter": self.meter.open(self.t, name, **more),
                "oracle": self.oracle.open(self.t, name, **more),
                "free": set(range(first, first + size)) - set(cached),
                "cached": dict.fromkeys(cached, 0),
                "held": {},
            }
        )

    # Time: equal stamps are common, and so are boundaries.

    def pass_time(self) -> None:
        rng = self.random
        kind = rng.random()
        if kind < 0.45:
            return
        if kind < 0.6:
            self.t += rng.randrange(1, 8)
        elif kind < 0.85:
            self.t += rng.randrange(1, 2_000_000)
        elif kind < 0.95:
            self.t += PERIOD_US - (self.anchor + self.t) % PERIOD_US
        elif kind < 0.98:
            self.t += rng.randrange(1, 5 * PERIOD_US)
        else:
            self.t += PERIOD_US

    def both(self, what: str, *args, **more) -> None:
        getattr(self.meter, what)(self.t, *args, **more)
        getattr(self.oracle, what)(self.t, *args, **more)

    def pool_both(self, pool: dict, what: str, *args, **more) -> None:
        new = more.get("new")
        only_new = what == "acquire" and not (more.get("hit") or more.get("loaded") or "covered_tokens" in more)
        if only_new and self.random.random() < 0.5:
            name, group = args
            pool["meter"].grow(self.t, group, [name] * len(new), new)
        else:
            getattr(pool["meter"], what)(self.t, *args, **more)
        getattr(pool["oracle"], what)(self.t, *args, **more)

    # Events.

    def arrive(self) -> None:
        rng = self.random
        tenant = rng.choice(["a", "b", "c", "system"])
        dims = Dimensions(
            tenant=tenant,
            session=rng.choice(["-", "s1", "s2"]),
            scenario=rng.choice(["", "chat"]),
            priority=rng.choice([0, 0, 1]),
        )
        prompt = rng.choice([1, 2, 16, 17, 33, rng.randrange(1, 70)])
        children = rng.choice([1, 1, 1, 3])
        parent = None
        if children > 1:
            parent = f"parent-{self.names}"
        first = None
        for _ in range(children):
            name = f"r{self.names}"
            self.names += 1
            self.both("request", name, dims, prompt_tokens=prompt, parent=parent)
            self.live[name] = {"held": defaultdict(list), "fork": first, "ended": False, "fresh": True}
            first = name if parent else None

    def take(self, name: str | None = None) -> None:
        rng = self.random
        names = [n for n, one in self.live.items() if not one["ended"]]
        if not names:
            return
        name = name or rng.choice(names)
        mine = self.live[name]
        pool = rng.choice(self.pools)
        group = rng.randrange(len(pool["groups"]))
        held = mine["held"][pool["name"]]
        hit: list[int] = []
        request = self.oracle.requests[name]
        seat = request.seats.get((pool["name"], group))
        begins = seat is None or not seat.order
        if (begins or rng.random() < 0.1) and not request.output:
            usable = [n for n, g in pool["cached"].items() if g == group] + [
                n for n, (g, holders) in pool["held"].items() if g == group and name not in holders
            ]
            if mine["fork"] in self.live and rng.random() < 0.8:
                parent = self.live[mine["fork"]]
                usable = [n for n in parent["held"][pool["name"]] if n in usable] or usable
                hit = usable[: rng.randrange(len(usable) + 1)]
            else:
                rng.shuffle(usable)
                hit = usable[: rng.choice([0, 1, 2, 5, len(usable)])]
        free = sorted(pool["free"])
        rng.shuffle(free)
        loaded = free[: rng.choice([0, 0, 0, 0, 1, 2])]
        free = free[len(loaded) :]
        new = free[: rng.choice([0, 1, 1, 2, 4])]
        if len(new) < 2 and pool["cached"] and rng.random() < 0.5:
            takes = [n for n in pool["cached"] if n not in hit][: rng.choice([1, 2])]
            if takes:
                if rng.random() < 0.7:
                    self.pool_both(pool, "evict", takes)
                    for n in takes:
                        del pool["cached"][n]
                    pool["free"].update(takes)
                    if rng.random() < 0.3:
                        self.pass_time()
                new = new + takes
        if not (hit or loaded or new):
            return
        more = {"hit": hit, "loaded": loaded, "new": new}
        if (hit or loaded) and rng.random() < 0.2:
            more["covered_tokens"] = rng.randrange(0, 40)
        elif (hit or loaded) and begins and not group and (size := pool["oracle"].slots(0)) and rng.random() < 0.1:
            more["skipped_tokens"] = rng.choice([1, 2, 5]) * size
        self.pool_both(pool, "acquire", name, group, **more)
        for n in [*hit, *loaded, *new]:
            pool["free"].discard(n)
            pool["cached"].pop(n, None)
            _, holders = pool["held"].setdefault(n, (group, []))
            holders.append(name)
            held.append(n)

    def let_go(self, name: str, pool: dict, blocks: list[int]) -> None:
        rng = self.random
        if not blocks:
            return
        cached, freed = [], []
        keeps = rng.random()
        for n in blocks:
            group, holders = pool["held"][n]
            holders.remove(name)
            if not holders:
                del pool["held"][n]
                if rng.random() < keeps:
                    cached.append(n)
                    pool["cached"][n] = group
                else:
                    freed.append(n)
                    pool["free"].add(n)
        self.live[name]["held"][pool["name"]] = [n for n in self.live[name]["held"][pool["name"]] if n not in blocks]
        blocks = list(blocks)
        rng.shuffle(blocks)
        self.pool_both(pool, "release", name, blocks, cached=cached, freed=freed)

    def let_go_some(self) -> None:
        rng = self.random
        names = [n for n, one in self.live.items() if any(one["held"].values())]
        if not names:
            return
        name = rng.choice(names)
        pool = rng.choice(self.pools)
        held = self.live[name]["held"][pool["name"]]
        if rng.random() < 0.5:
            blocks = held[: rng.randrange(len(held) + 1)]
        elif rng.random() < 0.5:
            blocks = held[len(held) - rng.randrange(len(held) + 1) :]
        else:
            blocks = [n for n in held if rng.random() < 0.5]
        self.let_go(name, pool, blocks)
        self.forget(name)

    def let_go_all(self, name: str) -> None:
        for pool in self.pools:
            if self.random.random() < 0.2:
                self.pass_time()
            self.let_go(name, pool, list(self.live[name]["held"][pool["name"]]))
        self.forget(name)

    def forget(self, name: str) -> None:
        one = self.live[name]
        if one["ended"] and not any(one["held"].values()):
            del self.live[name]

    def schedule(self) -> None:
        rng = self.random
        if len(self.flight) > (1 if self.asynchronous else 0):
            self.end_step()
        tokens: dict[str, int] = {}
        skips = rng.random() < 0.1
        for name, one in self.live.items():
            request = self.oracle.requests[name]
            if one["ended"] or (skips and rng.random() < 0.3) or (one["fresh"] and rng.random() < 0.5):
                continue
            one["fresh"] = False
            known = self.oracle.known(request)
            left = known - request.frontier
            if left > 1:
                tokens[name] = rng.choice([left, left, rng.randrange(1, left + 1)])
            else:
                tokens[name] = 1
            if self.speculates and left <= 1:
                tokens[name] += rng.choice([0, 1, 3])
            if self.tidy:
                self.make_room(name, request.frontier + tokens[name])
        names = list(tokens)
        rng.shuffle(names)
        tokens = {name: tokens[name] for name in names}
        self.both("scheduled", tokens, sum(tokens.values()))
        self.flight.append(tokens)

    def make_room(self, name: str, tokens: int) -> None:
        pool = self.pools[0]
        size = pool["groups"][0].block_size
        seat = self.oracle.requests[name].seats.get(("device", 0))
        missing = -(-tokens // size) - (len(seat.order) if seat else 0)
        new = sorted(pool["free"])[:missing] if missing > 0 else []
        if new:
            self.pool_both(pool, "acquire", name, 0, new=new)
            for n in new:
                pool["free"].discard(n)
                pool["held"][n] = (0, [name])
            self.live[name]["held"]["device"].extend(new)

    def end_step(self) -> None:
        rng = self.random
        if not self.flight:
            return
        tokens = self.flight.pop(0)
        step = self.oracle.flight[0]
        accepted = {}
        for name in tokens:
            request = self.oracle.requests.get(name)
            if request is None:
                continue
            if request in step.ends:
                most = step.ends[request][0] + 1
                number = rng.randrange(most + 1) if most > 1 else rng.choice([1] * 20 + [0, 2])
                if number != 1 or rng.random() < 0.05:
                    accepted[name] = number
            elif rng.random() < 0.02:
                accepted[name] = 1
        self.both("stepped", accepted)

    def preempt(self) -> None:
        rng = self.random
        names = [n for n, one in self.live.items() if not one["ended"] and any(one["held"].values())]
        if not names:
            return
        name = rng.choice(names)
        first = rng.random() < 0.5
        if first:
            self.both("preempt", name, rng.choice(list(PreemptionReason)))
        if rng.random() < 0.8:
            self.let_go_all(name)
        if not first:
            self.both("preempt", name, rng.choice(list(PreemptionReason)))

    def finish(self) -> None:
        rng = self.random
        names = [n for n, one in self.live.items() if not one["ended"]]
        if not names:
            return
        name = rng.choice(names)
        first = rng.random() < 0.5
        pending = rng.random() < 0.2
        if not first and not pending:
            for pool in self.pools:
                self.let_go(name, pool, list(self.live[name]["held"][pool["name"]]))
        self.both("finish", name, rng.choice(ENDS), "why")
        self.live[name]["ended"] = True
        if not pending and first:
            self.let_go_all(name)
        else:
            self.forget(name)

    def release_pending(self) -> None:
        for name in [n for n, one in self.live.items() if one["ended"]]:
            if self.random.random() < 0.5:
                self.let_go_all(name)

    def evict(self) -> None:
        pool = self.random.choice(self.pools)
        cached = list(pool["cached"])
        blocks = cached[: self.random.choice([1, 2, len(cached)])]
        if blocks:
            self.pool_both(pool, "evict", blocks)
            for n in blocks:
                del pool["cached"][n]
            pool["free"].update(blocks)

    def run(self) -> None:
        rng = self.random
        chances = {
            self.arrive: 3,
            self.take: 8,
            self.schedule: 12,
            self.end_step: 10,
            self.let_go_some: 1.5,
            self.preempt: 1,
            self.finish: 2,
            self.release_pending: 1,
            self.evict: 1,
            self.idle: 0.5,
            self.new_boot: 0.2,
        }
        for event in rng.choices(list(chances), list(chances.values()), k=self.events):
            self.pass_time()
            event()
        self.pass_time()
        self.end_boot()

    def idle(self) -> None:
        self.both("advance")

    def new_boot(self) -> None:
        if self.boots >= 3:
            return
        self.end_boot()
        self.anchor += self.random.choice([0, 1, -2_000_000, 7_777_777, 3_600_000_000])
        self.t += self.random.choice([0, 3_000_000])
        self.start_boot()

    def end_boot(self) -> None:
        self.both("close")
        for meter in self.meters:
            meter.settle()
        assert not self.meter.faults, dict(self.meter.faults)
        check(self.oracle, self.batches[self.first_batch :])


def check(oracle: Oracle, batches: list) -> None:
    """Batches of one boot against the oracle's periods."""
    assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))
    assert not batches[0].pools
    assert batches[0].start_us == batches[0].end_us
    spans = [(batch.start_us, batch.end_us) for batch in batches[1:]]
    assert spans == [(oracle.anchor + p.start, oracle.anchor + p.end) for p in oracle.periods]
    totals: dict[str, Counter] = defaultdict(Counter)
    requests: dict[str, OracleRequest] = {}
    cached: dict[tuple, int] = defaultdict(int)
    for batch, period in zip(batches[1:], oracle.periods, strict=True):
        check_period(batch, period, cached)
        for name in ("tokens", "compute"):
            for request in getattr(period, name):
                if isinstance(request, OracleRequest):
                    requests[request.id] = request
        for pool, sums in period.pools.items():
            for (request, _group, holders), us in sums.shares.items():
                requests[request.id] = request
                totals[request.id][pool, "active"] += Fraction(us, holders)
            for what in ("unfilled", "ahead"):
                for (request, holders), us in getattr(sums, what).items():
                    totals[request.id][pool, what] += Fraction(us, holders)
        for who, us in period.compute.items():
            if isinstance(who, OracleRequest):
                totals[who.id]["compute"] += us
        finished = {request.id: request for request in period.finished}
        assert {record.request for record in batch.requests} == set(finished)
        assert [admission.request for admission in batch.admissions] == period.admitted
        for record in batch.requests:
            check_record(record, finished[record.request], totals[record.request], len(oracle.periods), oracle.anchor)
    answered = [record.request for batch in batches for record in batch.requests]
    assert len(set(answered)) == len(answered)


def settled(total: int, exact: dict) -> tuple[dict, dict]:
    """Largest remainder top-down in exact fractions, ``exact`` by ``(dims, request)``: units of sessions and of these.

    Each has the floor of its own value, the parent's other units go to the largest fractions, ties by the names.
    """
    sessions: dict = {}
    requests: dict = {}
    tenants = _divided(total, _sums(exact, lambda key: key[0].tenant))
    for tenant, share in tenants.items():
        mine = {key: part for key, part in exact.items() if key[0].tenant == tenant}
        for dims, part in _divided(share, _sums(mine, lambda key: key[0])).items():
            sessions[dims] = part
            requests |= _divided(part, {key: own for key, own in mine.items() if key[0] == dims})
    return sessions, requests


def _sums(exact: dict, by) -> dict:
    sums: dict = defaultdict(Fraction)
    for key, part in exact.items():
        sums[by(key)] += part
    return sums


def _divided(total: int, exact: dict) -> dict:
    units = {key: int(part) for key, part in exact.items()}
    for key in sorted(exact, key=lambda key: (units[key] - exact[key], key))[: total - sum(units.values())]:
        units[key] += 1
    return units


def near(units: int, exact: Fraction, periods: int = 1) -> bool:
    return abs(units - exact) <= periods


def check_period(batch, period, cached) -> None:
    length = period.end - period.start
    # Where a period has neither length nor rows, its pools are left out.
    if length or batch.sessions:
        assert [pool.pool for pool in batch.pools] == list(period.pools)
    else:
        assert not batch.pools
    rows = {(row.pool, row.dims): row for row in batch.sessions}
    assert len(rows) == len(batch.sessions)
    uses = {
        (record.dims, record.request): use
        for record in batch.requests
        for use in record.uses
        if use.start_us == batch.start_us
    }
    for pool in batch.pools:
        sums = period.pools[pool.pool]
        groups = Counter()
        sessions = defaultdict(Counter)
        for (request, group, holders), us in sums.shares.items():
            groups[group] += Fraction(us, holders)
            sessions[request.dims]["active"] += Fraction(us, holders)
            sessions[request.dims]["held", group] += Fraction(us, holders)
        for what in ("unfilled", "ahead"):
            for (request, holders), us in getattr(sums, what).items():
                sessions[request.dims][what] += Fraction(us, holders)
        assert pool.active_block_us == sum(groups.values())
        assert pool.cached_block_us == sum(sums.cached.values())
        assert pool.free_block_us == sums.free
        assert pool.active_block_us + pool.cached_block_us + pool.free_block_us == pool.blocks * length
        assert [g.active_block_us for g in pool.groups] == [groups[i] for i in range(len(pool.groups))]
        assert pool.unfilled_slot_us == sum(s["unfilled"] for s in sessions.values())
        assert pool.lookahead_slot_us == sum(s["ahead"] for s in sessions.values())
        assert pool.active_blocks_end == sums.active_end
        assert pool.cached_blocks_end == sum(sums.cached_end.values())
        mine = [row for (name, _), row in rows.items() if name == pool.pool]
        assert sum(row.holding.active_block_us for row in mine) == pool.active_block_us
        assert sum(row.holding.unfilled_slot_us for row in mine) == pool.unfilled_slot_us
        assert sum(row.holding.lookahead_slot_us for row in mine) == pool.lookahead_slot_us
        assert sum(row.holding.held_slot_us for row in mine) == pool.held_slot_us
        tenants = defaultdict(lambda: [0, 0])
        for row in mine:
            exact = sessions.pop(row.dims, Counter())
            assert near(row.holding.active_block_us, exact["active"])
            assert near(row.holding.unfilled_slot_us, exact["unfilled"])
            assert near(row.holding.lookahead_slot_us, exact["ahead"])
            assert row.cached_block_us == sums.cached[row.dims]
            tenants[row.dims.tenant][0] += row.holding.active_block_us
            tenants[row.dims.tenant][1] += exact["active"]
            cached[pool.pool, row.dims] = row.cached_blocks_end
        assert all(near(units, exact) for units, exact in tenants.values())
        assert not any(any(exact.values()) for exact in sessions.values())
        # A session without a row kept its count for the whole period.
        for dims, us in sums.cached.items():
            if (pool.pool, dims) not in rows and dims != NOBODY:
                assert us == cached[pool.pool, dims] * length
        ends = {dims: n for (name, dims), n in cached.items() if name == pool.pool and n}
        assert ends == {dims: n for dims, n in sums.cached_end.items() if n}
        if batch.standing is not None:
            assert {s.dims: s.cached_blocks for s in batch.standing if s.pool == pool.pool} == ends
        check_division(pool, sums, rows, uses if pool.pool == period.lead else {})
        leads = pool.pool == period.lead
        assert (pool.steps, pool.step_us) == ((period.steps, period.step_us) if leads else (0, 0))
    check_rows(batch, period, rows, uses)


def check_division(pool, sums, rows, uses) -> None:
    """Every unit where exact fractions put it, ties by the names: no rounding of the meter's decides."""
    for what, total, attribute in (
        ("shares", pool.active_block_us, "active_block_us"),
        ("unfilled", pool.unfilled_slot_us, "unfilled_slot_us"),
        ("ahead", pool.lookahead_slot_us, "lookahead_slot_us"),
    ):
        exact = defaultdict(Fraction)
        for (request, *_, holders), us in getattr(sums, what).items():
            exact[request.dims, request.id] += Fraction(us, holders)
        sessions, requests = settled(total, exact)
        for dims, units in sessions.items():
            assert getattr(rows[pool.pool, dims].holding, attribute) == units, (what, dims)
        if what == "shares":
            assert {key: use.active_block_us for key, use in uses.items()} == {
                key: requests.get(key, 0) for key in uses
            }


def check_rows(batch, period, rows, uses) -> None:
    tokens = defaultdict(Counter)
    for request, counts in period.tokens.items():
        tokens[request.dims].update(counts)
    computing = {
        (who.dims, who.id) if isinstance(who, OracleRequest) else (SYSTEM, ""): us for who, us in period.compute.items()
    }
    compute, requests = settled(period.step_us, computing)
    assert {key: use.compute_us for key, use in uses.items()} == {key: requests.get(key, 0) for key in uses}
    for (pool, dims), row in rows.items():
        if pool != period.lead:
            assert row.tokens == Tokens()
            assert row.compute_us == 0
            continue
        assert row.tokens == tokens_of(tokens.pop(dims, Counter())), dims
        assert row.compute_us == compute.pop(dims, 0)
    assert not any(any(counts.values()) for counts in tokens.values())
    assert not any(compute.values())
    assert sum(row.compute_us for row in rows.values()) == period.step_us


def tokens_of(counts) -> Tokens:
    return Tokens(
        computed=counts["computed"],
        cached_own=counts["own"],
        cached_others=counts["others"],
        transferred=counts["transferred"],
        unprocessed=counts["unprocessed"],
        recomputed=counts["recomputed"],
        output=counts["output"],
        drafted=counts["drafted"],
        rejected=counts["rejected"],
    )


def check_record(record, request, totals, periods, anchor) -> None:
    assert record.dims == request.dims
    assert record.parent == request.parent
    assert record.outcome == request.outcome
    assert record.prompt_tokens == request.prompt
    assert record.tokens == tokens_of(request.tokens)
    tokens = record.tokens
    classes = (tokens.computed, tokens.cached_own, tokens.cached_others, tokens.transferred, tokens.unprocessed)
    assert sum(classes) == record.prompt_tokens
    assert near(record.holding.active_block_us, totals[record.pool, "active"], periods)
    assert near(record.holding.unfilled_slot_us, totals[record.pool, "unfilled"], periods)
    assert near(record.compute_us, totals["compute"], periods)
    assert sum(use.active_block_us for use in record.uses) == record.holding.active_block_us
    assert sum(use.compute_us for use in record.uses) == record.compute_us
    for other in record.other_holdings:
        assert near(other.holding.active_block_us, totals[other.pool, "active"], periods)
    reasons = record.preemptions
    for reason in PreemptionReason:
        assert getattr(reasons, reason.value) == request.tokens[f"preempted {reason}"]
    assert record.peak_blocks == request.tokens["peak"]
    for mine, theirs in [
        (record.scheduled_us, request.scheduled),
        (record.first_token_us, request.first),
        (record.last_token_us, request.last),
        (record.ended_us, request.ended),
        (record.arrived_us, request.arrived),
    ]:
        assert mine == (None if theirs is None else anchor + theirs)


def run(seed: int) -> None:
    """One schedule; a failure says how to repeat it."""
    try:
        Driver(seed).run()
    except BaseException as error:
        error.add_note(f"repeat with: python tests/schedules.py {seed}")
        raise


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        first, _, last = argument.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            run(seed)
    print("no difference")
