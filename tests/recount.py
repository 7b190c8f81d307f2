"""The count behind the sweep: one engine's pool, block by block, from the events of an audit log.

For each request it keeps how many blocks it holds with how many holders, adds plain integers, and divides once,
with fractions, when a period is over. No integrals of ``1/holders``, no fixed point, no forest.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

from ledger.core.records import NO_SESSION, PERIOD_US, SYSTEM, UNATTRIBUTED, Dimensions, Tokens

TOKEN_NAMES = tuple(Tokens.__dataclass_fields__)


class Held:
    """What one request holds: blocks and unfilled slots by number of holders, and their time so far."""

    def __init__(self, event: dict[str, Any]) -> None:
        self.request: str = event["request"]
        self.parent: str | None = event["parent"]
        self.prompt: int = event["prompt_tokens"]
        self.arrived_us: int = event["arrived_us"]
        self.dims = Dimensions(
            tenant=event["tenant"],
            session=event["session"],
            model=event["model"],
            adapter=event["adapter"],
            scenario=event["scenario"],
            priority=event["priority"],
        )
        self.table: list[int] = []
        self.blocks: dict[int, int] = defaultdict(int)
        self.unfilled: dict[int, int] = defaultdict(int)
        self.since_us = 0
        self.block_us: dict[int, int] = defaultdict(int)
        self.slot_us: dict[int, int] = defaultdict(int)
        self.compute: dict[int, int] = defaultdict(int)
        """By total of the step: duration times own tokens."""
        self.frontier = self.highest = self.outputs = 0
        self.tokens = dict.fromkeys(TOKEN_NAMES, 0)
        self.preemptions: dict[str, int] = defaultdict(int)
        self.peak = 0
        self.held = 0
        self.scheduled_us: int | None = None
        self.first_us: int | None = None
        self.last_us: int | None = None
        self.outcome = ""
        self.finish_reason = ""
        self.ended_us = 0
        self.uses: list[tuple[int, Fraction, Fraction]] = []
        self.unfilled_total = Fraction()

    def flush(self, t_us: int) -> None:
        elapsed = t_us - self.since_us
        if elapsed:
            self.since_us = t_us
            for holders, count in self.blocks.items():
                if count:
                    self.block_us[holders] += count * elapsed
            for holders, count in self.unfilled.items():
                if count:
                    self.slot_us[holders] += count * elapsed


class SessionSum:
    """A session's period: exact shares, and counts."""

    def __init__(self) -> None:
        self.block_us: dict[int, int] = defaultdict(int)
        self.slot_us: dict[int, int] = defaultdict(int)
        self.compute: dict[int, int] = defaultdict(int)
        self.cached_us = 0
        self.cached_end = 0
        self.cached_changed = False
        self.tokens = dict.fromkeys(TOKEN_NAMES, 0)
        self.preemptions: dict[str, int] = defaultdict(int)
        self.ended = False
        self.scheduled = False


class Period:
    """All that a batch of one engine should say, counted."""

    def __init__(self, start_us: int, end_us: int) -> None:
        self.start_us = start_us
        self.end_us = end_us
        self.blocks = self.active_us = self.cached_us = self.unfilled_us = 0
        self.active_end = self.cached_end = 0
        self.steps = self.step_us = 0
        self.sessions: dict[Dimensions, SessionSum] = {}
        self.ended: dict[str, Held] = {}
        self.admitted: set[str] = set()


def total(parts: dict[int, int]) -> Fraction:
    """The sum of ``amount / divisor``."""
    return sum((Fraction(amount, divisor) for divisor, amount in parts.items()), Fraction())


class EngineSweep:
    """The state of one engine's pool, block by block."""

    def __init__(self) -> None:
        self.closed: list[Period] = []
        self.pool = ""
        self.open = False
        self.last_step_us = 0

    def feed(self, event: dict[str, Any]) -> None:
        ev = event["ev"]
        t_us = event["t_us"]
        if ev == "open":
            self._open(event)
            return
        assert self.open, f"{ev} before open"
        if ev == "step":
            self._advance(event["start_us"])
            self._schedule(event["start_us"], event["scheduled"])
        self._advance(t_us)
        getattr(self, f"_{ev}")(t_us, event)

    def _open(self, event: dict[str, Any]) -> None:
        t_us = event["t_us"]
        self.pool = event["pool"]
        self.open = True
        self.blocks: int = event["blocks"]
        assert len(event["block_size"]) == 1, "the sweep counts one group"
        self.size: int = event["block_size"][0]
        self.requests: dict[str, Held] = {}
        self.holders: dict[int, list[Held]] = {}
        self.fill: dict[int, int] = {}
        self.writer: dict[int, tuple[str, str] | None] = {}
        nobody = Dimensions(tenant=UNATTRIBUTED, session=NO_SESSION)
        self.owner: dict[int, Dimensions] = dict.fromkeys(event["cached"], nobody)
        self.counts: dict[Dimensions, int] = defaultdict(int)
        self.counts_since: dict[Dimensions, int] = {}
        for _block in event["cached"]:
            self._own(nobody, 1, t_us)
        self.since_us = t_us
        self.unfilled = 0
        self.period = Period(t_us, t_us // PERIOD_US * PERIOD_US + PERIOD_US)

    # -- time

    def _advance(self, t_us: int) -> None:
        while t_us >= self.period.end_us:
            end_us = self.period.end_us
            self._cut(end_us)
            self.period = Period(end_us, end_us + PERIOD_US)

    def _pool_until(self, t_us: int) -> None:
        elapsed = t_us - self.since_us
        self.since_us = t_us
        self.period.active_us += elapsed * len(self.holders)
        self.period.cached_us += elapsed * len(self.owner)
        self.period.unfilled_us += elapsed * self.unfilled

    def _cut(self, end_us: int) -> None:
        self._pool_until(end_us)
        period = self.period
        period.end_us = end_us
        period.blocks = self.blocks
        period.active_end = len(self.holders)
        period.cached_end = len(self.owner)
        for held in [*self.requests.values(), *period.ended.values()]:
            held.flush(end_us)
            assert not held.outcome or not held.held, f"{held.request} ended and holds blocks: not of this engine"
            self._settle(held, period.start_us)
        for dims, count in self.counts.items():
            if count:
                self._own(dims, 0, end_us)
        for dims, sums in period.sessions.items():
            sums.cached_end = self.counts.get(dims, 0)
        self.counts = defaultdict(int, {dims: count for dims, count in self.counts.items() if count})
        self.closed.append(period)

    def _settle(self, held: Held, start_us: int) -> None:
        """What ``held`` used in this period goes to its session."""
        if not (held.block_us or held.compute):
            return
        sums = self._sums(held.dims)
        for own, its in ((held.block_us, sums.block_us), (held.slot_us, sums.slot_us), (held.compute, sums.compute)):
            for divisor, amount in own.items():
                its[divisor] += amount
        held.uses.append((start_us, total(held.block_us), total(held.compute)))
        held.unfilled_total += total(held.slot_us)
        held.block_us = defaultdict(int)
        held.slot_us = defaultdict(int)
        held.compute = defaultdict(int)

    def _sums(self, dims: Dimensions) -> SessionSum:
        sums = self.period.sessions.get(dims)
        if sums is None:
            sums = self.period.sessions[dims] = SessionSum()
        return sums

    def _own(self, dims: Dimensions, change: int, t_us: int) -> None:
        """``change`` more cached blocks of ``dims`` from now on."""
        count = self.counts[dims]
        sums = self._sums(dims) if count or change else None
        if count and sums is not None:
            sums.cached_us += count * (t_us - self.counts_since[dims])
        self.counts_since[dims] = t_us
        self.counts[dims] = count + change
        if change and sums is not None:
            sums.cached_changed = True

    # -- events

    def _request(self, t_us: int, event: dict[str, Any]) -> None:
        held = Held(event)
        held.since_us = t_us
        assert held.request not in self.requests, f"{held.request} was received twice"
        self.requests[held.request] = held
        self.period.admitted.add(held.request)

    def _acquire(self, t_us: int, event: dict[str, Any]) -> None:
        self._pool_until(t_us)
        held = self.requests[event["request"]]
        held.flush(t_us)
        gone: dict[Dimensions, int] = defaultdict(int)
        session = (held.dims.tenant, held.dims.session)
        for block in event["hit"]:
            self._cover(held, "cached_own" if self.writer.get(block) == session else "cached_others")
            self._join(block, held, t_us, gone)
        for block in event["loaded"]:
            self._cover(held, "transferred")
            self.fill[block] = self.size
            self.writer[block] = None
            self._join(block, held, t_us, gone)
        for block in event["new"]:
            assert block not in self.holders, f"block {block} has two owners"
            self.fill[block] = 0
            self.writer[block] = session
            self._join(block, held, t_us, gone)
        for dims, count in gone.items():
            self._own(dims, -count, t_us)
        held.held += len(event["hit"]) + len(event["loaded"]) + len(event["new"])
        held.peak = max(held.peak, held.held)
        assert len(self.holders) + len(self.owner) <= self.blocks, "more blocks than there are"

    def _join(self, block: int, held: Held, t_us: int, gone: dict[Dimensions, int]) -> None:
        missing = self.size - self.fill[block]
        others = self.holders.get(block)
        if others is None:
            owner = self.owner.pop(block, None)
            if owner is not None:
                gone[owner] += 1
            self.holders[block] = [held]
            self.unfilled += missing
        else:
            self._shift(block, others, missing, t_us, len(others) + 1)
            others.append(held)
        holders = len(self.holders[block])
        held.blocks[holders] += 1
        if missing:
            held.unfilled[holders] += missing
        held.table.append(block)

    def _shift(self, block: int, holders: list[Held], missing: int, t_us: int, now: int) -> None:
        """``block`` had as many holders as ``holders`` says (one may be on its way out) and has ``now``."""
        before = len(holders)
        for held in holders:
            held.flush(t_us)
            held.blocks[before] -= 1
            held.blocks[now] += 1
            if missing:
                held.unfilled[before] -= missing
                held.unfilled[now] += missing

    def _release(self, t_us: int, event: dict[str, Any]) -> None:
        self._pool_until(t_us)
        held = self.requests.get(event["request"]) or self.period.ended[event["request"]]
        held.flush(t_us)
        cached = set(event["cached"])
        freed = set(event["freed"])
        came: int = 0
        for block in event["blocks"]:
            holders = self.holders[block]
            missing = self.size - self.fill[block]
            left = len(holders) - 1
            held.blocks[left + 1] -= 1
            if missing:
                held.unfilled[left + 1] -= missing
            if left:
                assert not {block} & (cached | freed), f"block {block} is still held by {left}"
                position = next(i for i, other in enumerate(holders) if other is held)
                # The others are shifted while the leaver still counts as a holder.
                for other in holders:
                    if other is not held:
                        other.flush(t_us)
                        other.blocks[left + 1] -= 1
                        other.blocks[left] += 1
                        if missing:
                            other.unfilled[left + 1] -= missing
                            other.unfilled[left] += missing
                holders.pop(position)
                continue
            del self.holders[block]
            self.unfilled -= missing
            if block in cached:
                self.owner[block] = held.dims
                came += 1
            else:
                assert block in freed, f"block {block} is neither held, cached nor freed"
        if came:
            self._own(held.dims, came, t_us)
        gone = set(event["blocks"])
        held.table = [block for block in held.table if block not in gone]
        held.held -= len(event["blocks"])

    def _evict(self, t_us: int, event: dict[str, Any]) -> None:
        self._pool_until(t_us)
        gone: dict[Dimensions, int] = defaultdict(int)
        for block in event["blocks"]:
            gone[self.owner.pop(block)] += 1
        for dims, count in gone.items():
            self._own(dims, -count, t_us)

    def _schedule(self, t_us: int, scheduled: dict[str, int]) -> None:
        for request, tokens in scheduled.items():
            held = self.requests[request]
            sums = self._sums(held.dims)
            sums.scheduled = True
            end = held.frontier + tokens
            self._count(held, sums, "recomputed", max(0, min(end, held.highest) - held.frontier))
            fresh = max(0, min(end, held.prompt) - max(held.frontier, held.highest))
            self._count(held, sums, "computed", fresh)
            self._count(held, sums, "drafted", max(0, end - held.prompt - held.outputs))
            first = held.frontier // self.size
            held.frontier = end
            held.highest = max(held.highest, end)
            if held.scheduled_us is None:
                held.scheduled_us = t_us
            self._refill(held, first, t_us)

    def _refill(self, held: Held, first: int, t_us: int) -> None:
        """Blocks of ``held`` from the ``first`` on are filled as far as it has been scheduled, or further."""
        for index in range(first, min(-(-held.frontier // self.size), len(held.table))):
            self._fill(held.table[index], min(self.size, held.frontier - index * self.size), t_us, falls=False)

    def _fill(self, block: int, filled: int, t_us: int, *, falls: bool) -> None:
        change = filled - self.fill[block]
        if change > 0 or (falls and change < 0):
            self._pool_until(t_us)
            holders = self.holders[block]
            for held in holders:
                held.flush(t_us)
                held.unfilled[len(holders)] -= change
            self.fill[block] = filled
            self.unfilled -= change

    def _step(self, t_us: int, event: dict[str, Any]) -> None:
        began_us = max(event["start_us"], self.last_step_us)
        self.last_step_us = t_us
        elapsed = t_us - began_us
        assert event["duration_us"] == t_us - event["start_us"], "start, duration and end disagree"
        self.period.steps += 1
        self.period.step_us += elapsed
        scheduled = event["scheduled"]
        tokens = sum(scheduled.values())
        if not tokens:
            self._sums(Dimensions(tenant=SYSTEM)).compute[1] += elapsed
        for request, count in scheduled.items():
            held = self.requests[request]
            sums = self._sums(held.dims)
            held.compute[tokens] += elapsed * count
            known = held.prompt + held.outputs
            accepted = event["accepted"][request]
            drafted = max(0, held.frontier - known)
            rejected = drafted - max(accepted - 1, 0)
            self._count(held, sums, "rejected", rejected)
            self._count(held, sums, "output", accepted)
            held.outputs += accepted
            if accepted:
                held.first_us = t_us if held.first_us is None else held.first_us
                held.last_us = t_us
            if rejected:
                held.frontier -= rejected
                held.highest -= rejected
                for index in range(held.frontier // self.size, len(held.table)):
                    block = held.table[index]
                    assert len(self.holders[block]) == 1, "a block with drafts is held alone"
                    self._fill(block, max(0, held.frontier - index * self.size), t_us, falls=True)

    def _preempt(self, _t_us: int, event: dict[str, Any]) -> None:
        held = self.requests[event["request"]]
        held.frontier = 0
        held.preemptions[event["reason"]] += 1
        self._sums(held.dims).preemptions[event["reason"]] += 1

    def _finish(self, t_us: int, event: dict[str, Any]) -> None:
        held = self.requests.pop(event["request"])
        held.flush(t_us)
        held.outcome = event["reason"]
        held.finish_reason = event["finish_reason"]
        held.ended_us = t_us
        sums = self._sums(held.dims)
        sums.ended = True
        told = sum(held.tokens[name] for name in ("computed", "cached_own", "cached_others", "transferred"))
        self._count(held, sums, "unprocessed", held.prompt - told)
        own = {name: held.tokens[name] for name in event["tokens"]}
        assert own == event["tokens"], f"{held.request}: the log says {event['tokens']}, its events make {own}"
        assert held.outputs == event["output_tokens"]
        self.period.ended[held.request] = held

    def _close(self, t_us: int, _event: dict[str, Any]) -> None:
        self.open = False
        if t_us > self.period.start_us or self.period.ended:
            self._cut(t_us)

    def _cover(self, held: Held, name: str) -> None:
        """One more block of the prompt (or of what was computed before a preemption) is there already."""
        end = min(held.frontier + self.size, held.prompt + held.outputs)
        fresh = max(0, min(end, held.prompt) - max(held.frontier, held.highest))
        held.frontier = end
        held.highest = max(held.highest, end)
        self._count(held, self._sums(held.dims), name, fresh)

    def _count(self, held: Held, sums: SessionSum, name: str, tokens: int) -> None:
        if tokens:
            held.tokens[name] += tokens
            sums.tokens[name] += tokens
