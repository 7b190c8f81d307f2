"""The naive meter: walks every block at every event, in fractions, and remembers every position.

It takes the same events as :class:`ledger.hook.meter.Meter` and knows nothing of how that works. Slow on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from ledger.core.records import PERIOD_US, Dimensions, GroupKind, Outcome

NOBODY = Dimensions(tenant="unattributed")
SYSTEM = Dimensions(tenant="system")
GONE = -1
"""In a block table: the block was let go, and its positions stay taken."""


@dataclass(eq=False)
class Block:
    group: int
    holders: list = field(default_factory=list)
    owner: Dimensions | None = None
    full: bool = False
    """Came with content."""
    level: int | None = None
    """Filled slots, once they are no longer read from the only holder's frontier."""
    computed_by: tuple | None = None


@dataclass(eq=False)
class Seat:
    """A request's block table in a group of a pool."""

    base: int = 0
    order: list = field(default_factory=list)


@dataclass(eq=False)
class OracleRequest:
    id: str
    dims: Dimensions
    prompt: int
    parent: str | None
    arrived: int
    frontier: int = 0
    seen: set = field(default_factory=set)
    classified: set = field(default_factory=set)
    output: int = 0
    generation: int = 0
    seats: dict = field(default_factory=dict)
    tokens: Counter = field(default_factory=Counter)
    totals: Counter = field(default_factory=Counter)
    outcome: Outcome | None = None
    ended: int | None = None
    scheduled: int | None = None
    first: int | None = None
    last: int | None = None


@dataclass(eq=False)
class OracleStep:
    start: int
    total: int
    shares: dict
    ends: dict
    """Request to (drafted, generation) where its tokens end in a new one."""


@dataclass(eq=False)
class PoolSums:
    shares: Counter = field(default_factory=Counter)
    """(request, group, holders) to block time: divided only when it is read."""
    unfilled: Counter = field(default_factory=Counter)
    ahead: Counter = field(default_factory=Counter)
    cached: Counter = field(default_factory=Counter)
    free: int = 0
    cached_end: Counter = field(default_factory=Counter)
    active_end: int = 0


@dataclass(eq=False)
class OraclePeriod:
    start: int
    end: int
    lead: str
    pools: dict
    compute: dict
    tokens: dict
    steps: int
    step_us: int
    finished: list
    admitted: list


class OraclePool:
    def __init__(self, oracle, name, blocks, groups, lookahead, paying):
        self.oracle, self.name, self.size, self.groups = oracle, name, blocks, groups
        self.lookahead, self.paying = lookahead, paying
        self.blocks: dict[int, Block] = {}
        self.sums = PoolSums()

    def slots(self, group):
        return 0 if self.groups[group].kind is GroupKind.STATE else self.groups[group].block_size

    def start_of(self, request, group, block):
        seat = request.seats.get((self.name, group))
        if seat is None or block not in seat.order:
            return None
        return seat.base + seat.order.index(block) * self.slots(group)

    def fill(self, number):
        """Filled slots of a block; negative where the frontier is that far before it."""
        block = self.blocks[number]
        size = self.slots(block.group)
        if block.full:
            return size
        if block.level is not None:
            return block.level
        (holder,) = block.holders
        return holder.frontier - self.start_of(holder, block.group, number)

    def walk(self, span):
        """Every block, for ``span`` microseconds in which nothing changes."""
        sums = self.sums
        free = self.size
        for number, block in self.blocks.items():
            if not block.holders:
                if block.owner is not None:
                    sums.cached[block.owner] += span
                    free -= 1
                continue
            free -= 1
            size = self.slots(block.group)
            filled = covered = 0
            if size:
                fill = self.fill(number)
                filled = min(max(fill, 0), size)
                covered = min(max(fill + self.lookahead, 0), size)
            holders = len(block.holders)
            for holder in block.holders:
                sums.shares[holder, block.group, holders] += span
                if size - covered:
                    sums.unfilled[holder, holders] += span * (size - covered)
                if covered - filled:
                    sums.ahead[holder, holders] += span * (covered - filled)
        sums.free += span * free

    def freeze(self, request, group, numbers):
        """From now on the fill of these blocks stands for itself."""
        if not self.slots(group):
            return
        for number in numbers:
            block = self.blocks[number]
            if not block.full and block.level is None and block.holders == [request]:
                block.level = self.fill(number)

    def raise_levels(self, request):
        """Shared blocks are filled as far as any holder has scheduled them."""
        for (pool, group), seat in request.seats.items():
            if pool != self.name or not self.slots(group):
                continue
            for i, number in enumerate(seat.order):
                if number is None or number not in self.blocks:
                    continue
                block = self.blocks[number]
                if request in block.holders and block.level is not None:
                    level = request.frontier - (seat.base + i * self.slots(group))
                    block.level = max(block.level, level)

    # The engine's events.

    def acquire(self, t, name, group, *, hit=(), loaded=(), new=(), covered_tokens=None, skipped_tokens=0):
        oracle = self.oracle
        oracle.event(t)
        request = oracle.requests[name]
        size = self.slots(group)
        leads = oracle.lead() is self
        if (hit or loaded) and leads and group == 0:
            width = size or 1
            classes = [
                "own" if self.blocks[b].computed_by == (request.dims.tenant, request.dims.session) else "others"
                for b in hit
                for _ in range(width)
            ] + ["transferred"] * (len(loaded) * width)
            first = classes[0]
            if covered_tokens is not None:
                classes = classes[:covered_tokens]
            classes = [first] * skipped_tokens + classes
            for kind in classes[: max(request.prompt + request.output - request.frontier, 0)]:
                oracle.cover(request, request.frontier, kind)
                request.frontier += 1
            for pool in oracle.pools:
                pool.raise_levels(request)
        seat = request.seats.setdefault((self.name, group), Seat())
        full = len(hit) + len(loaded)
        if not seat.order and size and leads and group:
            end = max(full * size, -(-request.frontier // size) * size) if full else request.frontier // size * size
            seat.base = end - full * size
        if not seat.order and size and skipped_tokens:
            seat.base = skipped_tokens
        for number in hit:
            block = self.blocks[number]
            if block.holders:
                (first, *others) = block.holders
                if not others:
                    self.freeze(first, group, [number])
            else:
                block.full, block.level = True, None
            block.owner = None
            block.holders.append(request)
        for number in loaded:
            self.blocks[number] = Block(group, [request], full=True)
        for number in new:
            mine = (request.dims.tenant, request.dims.session)
            self.blocks[number] = Block(group, [request], computed_by=mine)
        if size:
            seat.order.extend([*hit, *loaded, *new])
        self.raise_levels(request)
        request.tokens["peak"] = max(request.tokens["peak"], oracle.held(request))

    def release(self, t, name, blocks, *, cached=(), freed=()):
        self.oracle.event(t)
        request = self.oracle.requests[name]
        for number in blocks:
            block = self.blocks[number]
            seat = request.seats[self.name, block.group]
            size = self.slots(block.group)
            if number in seat.order:
                seat.order[seat.order.index(number)] = None if self.fill(number) < size else GONE
        for number in blocks:
            self.blocks[number].holders.remove(request)
        for seat in request.seats.values():
            while seat.order and seat.order[-1] is None:
                seat.order.pop()
        for number in cached:
            self.blocks[number].owner = request.dims
        for number in freed:
            del self.blocks[number]
        self.oracle.maybe_complete(request)

    def evict(self, t, blocks):
        self.oracle.event(t)
        for number in blocks:
            del self.blocks[number]


class Oracle:
    def __init__(self, anchor, started):
        self.anchor = anchor
        self.pools: list[OraclePool] = []
        self.requests: dict[str, OracleRequest] = {}
        self.flight: list[OracleStep] = []
        self.periods: list[OraclePeriod] = []
        self.now = started - anchor
        self.begin = self.now
        self.last_end = None
        self.reset_sums()

    def reset_sums(self):
        self.compute = defaultdict(Fraction)
        self.counts = defaultdict(Counter)
        self.steps = self.step_us = 0
        self.finished, self.admitted = [], []
        for pool in self.pools:
            pool.sums = PoolSums()

    def lead(self):
        return next((pool for pool in self.pools if pool.paying), self.pools[0] if self.pools else None)

    def held(self, request):
        return sum(request in block.holders for pool in self.pools for block in pool.blocks.values())

    # Time.

    def event(self, t):
        while self.pools:
            boundary = self.boundary()
            if t < boundary:
                break
            self.walk(boundary)
            self.cut(boundary)
        self.walk(t)

    def boundary(self):
        return self.begin + PERIOD_US - (self.anchor + self.begin) % PERIOD_US

    def walk(self, t):
        if t > self.now:
            for pool in self.pools:
                pool.walk(t - self.now)
        self.now = t

    def cut(self, t):
        for pool in self.pools:
            pool.sums.active_end = sum(bool(block.holders) for block in pool.blocks.values())
            for block in pool.blocks.values():
                if not block.holders:
                    pool.sums.cached_end[block.owner] += 1
        self.periods.append(
            OraclePeriod(
                start=self.begin,
                end=t,
                lead=self.lead().name,
                pools={pool.name: pool.sums for pool in self.pools},
                compute=dict(self.compute),
                tokens=dict(self.counts),
                steps=self.steps,
                step_us=self.step_us,
                finished=self.finished,
                admitted=self.admitted,
            )
        )
        self.begin = t
        self.reset_sums()

    # Requests.

    def open(self, t, pool, *, blocks, groups, paying=True, cached=(), lookahead_tokens=0):
        self.event(t)
        if self.pools and t > self.begin:
            self.cut(t)
        self.begin = t
        made = OraclePool(self, pool, blocks, groups, lookahead_tokens, paying)
        self.pools.append(made)
        for number in cached:
            made.blocks[number] = Block(0, [], owner=NOBODY)
        return made

    def request(self, t, request, dims, *, prompt_tokens, parent=None, arrived_us=None):
        self.event(t)
        arrived = t if arrived_us is None else arrived_us
        self.requests[request] = OracleRequest(request, dims, prompt_tokens, parent, arrived)
        self.admitted.append(request)

    def known(self, request):
        """Prompt, output so far, and what the steps in flight are supposed to give."""
        ends = [step.ends[request] for step in self.flight if request in step.ends]
        return request.prompt + request.output + sum(drafted + 1 for drafted, _ in ends)

    def count(self, request, what, by=1):
        request.tokens[what] += by
        self.counts[request][what] += by

    def cover(self, request, position, kind):
        if position not in request.seen and position < request.prompt and position not in request.classified:
            request.classified.add(position)
            self.count(request, kind)
        request.seen.add(position)

    def scheduled(self, t, tokens, total):
        self.event(t)
        step = OracleStep(t, total, {}, {})
        for name, number in tokens.items():
            request = self.requests[name]
            if request.scheduled is None:
                request.scheduled = t
            known = self.known(request)
            start = request.frontier if request.frontier < known else max(known - 1, 0)
            for position in range(start, start + number):
                if position in request.seen:
                    self.count(request, "recomputed")
                self.cover(request, position, "computed")
            request.frontier = start + number
            step.shares[request] = number
            self.count(request, "scheduled")
            if request.frontier >= known:
                drafted = request.frontier - known
                self.count(request, "drafted", drafted)
                step.ends[request] = (drafted, request.generation)
            for pool in self.pools:
                pool.raise_levels(request)
        self.flight.append(step)

    def stepped(self, t, accepted=()):
        accepted = dict(accepted)
        self.event(t)
        step = self.flight.pop(0)
        begin = step.start if self.last_end is None else max(step.start, self.last_end)
        self.last_end = t
        self.steps += 1
        self.step_us += t - begin
        if not step.shares:
            self.compute[SYSTEM] += t - begin
        for request, number in step.shares.items():
            self.compute[request] += Fraction((t - begin) * number, step.total)
            if request.ended is not None:
                self.maybe_complete(request)
                continue
            gave = accepted.get(request.id, 1 if request in step.ends else 0)
            self.count(request, "output", gave)
            request.output += gave
            if request in step.ends:
                drafted, generation = step.ends[request]
                rejected = max(0, drafted - max(gave - 1, 0))
                self.count(request, "rejected", rejected)
                for position in sorted(request.seen)[len(request.seen) - rejected :]:
                    request.seen.remove(position)
                if generation == request.generation:
                    request.frontier -= rejected
                    beyond = max(0, request.frontier - self.known(request))
                    request.frontier -= beyond
                    for position in sorted(request.seen)[len(request.seen) - beyond :]:
                        request.seen.remove(position)
                else:
                    request.frontier = min(request.frontier, len(request.seen))
            if gave:
                request.first = t if request.first is None else request.first
                request.last = t

    def preempt(self, t, name, reason):
        self.event(t)
        request = self.requests[name]
        self.count(request, f"preempted {reason}")
        for (pool_name, group), seat in request.seats.items():
            for pool in self.pools:
                if pool.name == pool_name:
                    held = [n for n in seat.order if n in pool.blocks and request in pool.blocks[n].holders]
                    pool.freeze(request, group, held)
            seat.order, seat.base = [], 0
        request.frontier = 0
        request.generation += 1

    def finish(self, t, name, outcome, finish_reason=""):
        self.event(t)
        request = self.requests[name]
        request.outcome, request.ended = outcome, t
        self.count(request, "unprocessed", request.prompt - len(request.classified))
        self.maybe_complete(request)

    def maybe_complete(self, request):
        if request.ended is None or request.id not in self.requests:
            return
        if self.held(request) or any(request in step.shares for step in self.flight):
            return
        self.complete(request)

    def complete(self, request):
        del self.requests[request.id]
        self.finished.append(request)

    def advance(self, t):
        self.event(t)

    def close(self, t, reason="shutdown"):
        while self.pools and t > self.boundary():
            boundary = self.boundary()
            self.walk(boundary)
            self.cut(boundary)
        self.walk(t)
        for request in list(self.requests.values()):
            if request.ended is not None:
                self.complete(request)
        if self.pools:
            self.cut(t)
        self.pools = []
