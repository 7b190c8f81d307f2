"""The second method: an offline auditor that recounts every batch from an audit log, block by block.

It reads the events that ``kvledger replay --events`` writes and shares nothing with the meter but the records
that are compared: no integrals of ``1/holders``, no fixed point, no forest. For each request it keeps how many
blocks it holds with how many holders, adds plain integers, and divides once, with fractions, when a period is
over. Then every figure of the batch is compared: pools and cached counts exactly, divided time to within 1 µs.

    python -m tests.sweep EVENTS BATCHES      compare (batches as lines of wire documents; ``-``: both on stdin)
    python -m tests.sweep --replay TRACE      replay a trace and print both, events and batches, to stdout
    python -m tests.sweep --audit TRACE       the last two piped into each other: a whole trace, on two cores

A trace may be named as it lies in the folder of recorded traces (``KVLEDGER_TRACES``).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ledger import wire
from ledger.core.records import (
    NO_SESSION,
    PERIOD_US,
    SYSTEM,
    UNATTRIBUTED,
    Batch,
    Dimensions,
    Preemptions,
    RequestRecord,
    SessionPeriod,
    Tokens,
)
from ledger.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BREACHES_MAX = 50
"""Beyond so many they are not kept: one error usually drags others along."""

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


class Sweep:
    """Events in, batches in; ``breaches`` out. Batches may run behind the events, never ahead of their period."""

    def __init__(self) -> None:
        self.engines: dict[str, EngineSweep] = defaultdict(EngineSweep)
        self.breaches: list[str] = []
        self.events = self.periods = self.rows = self.records = 0
        self._standing: dict[str, dict[Dimensions, int]] = defaultdict(dict)
        self._early: list[Batch] = []

    def event(self, line: str) -> None:
        event = json.loads(line)
        self.events += 1
        try:
            self.engines[event["engine"]].feed(event)
        except (AssertionError, KeyError) as error:
            self._breach(f"event {self.events}: {type(error).__name__} {error}: {line[:200]}")

    def batch(self, batch: Batch) -> None:
        """Compare ``batch``, now or as soon as its period is over in the events."""
        self._early.append(batch)

    def compare(self) -> None:
        """Compare what can be compared by now."""
        waiting = []
        for batch in self._early:
            sweep = self.engines[batch.source.engine]
            if batch.start_us == batch.end_us:
                # It announces a boot, or a close on the grid: no time has passed in it.
                if batch.sessions or batch.requests or any(pool.active_block_us for pool in batch.pools):
                    self._breach(f"{batch.source.engine} seq {batch.seq}: facts without time")
                continue
            while sweep.closed and sweep.closed[0].end_us <= batch.start_us:
                missed = sweep.closed.pop(0)
                self._breach(f"{batch.source.engine}: no batch for the period {missed.start_us}..{missed.end_us}")
            if not sweep.closed:
                waiting.append(batch)
                continue
            self._compare(batch, sweep.closed.pop(0))
        self._early = waiting

    def finish(self) -> None:
        """Nothing more comes: every period must have found its batch, and the other way round."""
        self.compare()
        for batch in self._early:
            self._breach(f"{batch.source.engine} seq {batch.seq}: a batch without a period in the events")
        for engine, sweep in self.engines.items():
            for period in sweep.closed:
                self._breach(f"{engine}: no batch for the period {period.start_us}..{period.end_us}")

    def _breach(self, text: str) -> None:
        if len(self.breaches) < BREACHES_MAX:
            self.breaches.append(text)

    def _compare(self, batch: Batch, period: Period) -> None:
        self.periods += 1
        where = f"{batch.source.engine} seq {batch.seq}"

        def same(name: str, told: object, counted: object) -> None:
            if told != counted:
                self._breach(f"{where}: {name} is {told} in the batch, {counted} by the events")

        def near(name: str, told: int, counted: Fraction, allowed: int = 1) -> None:
            if abs(told - counted) > allowed:
                self._breach(f"{where}: {name} is {told} in the batch, {float(counted)} by the events")

        size = self.engines[batch.source.engine].size
        same("period", (batch.start_us, batch.end_us), (period.start_us, period.end_us))
        (pool,) = batch.pools
        length = period.end_us - period.start_us
        same("blocks", pool.blocks, period.blocks)
        same("active", pool.active_block_us, period.active_us)
        same("cached", pool.cached_block_us, period.cached_us)
        same("free", pool.free_block_us, period.blocks * length - period.active_us - period.cached_us)
        same("unfilled", pool.unfilled_slot_us, period.unfilled_us)
        same("held slots", pool.held_slot_us, period.active_us * size)
        same(
            "blocks at the end",
            (pool.active_blocks_end, pool.cached_blocks_end),
            (period.active_end, period.cached_end),
        )
        same("steps", (pool.steps, pool.step_us), (period.steps, period.step_us))
        rows = {row.dims: row for row in batch.sessions}
        self.rows += len(rows)
        same("rows", len(rows), len(batch.sessions))
        same("active of all rows", sum(row.holding.active_block_us for row in rows.values()), period.active_us)
        same("unfilled of all rows", sum(row.holding.unfilled_slot_us for row in rows.values()), period.unfilled_us)
        same("compute of all rows", sum(row.compute_us for row in rows.values()), period.step_us)
        standing = self._standing[batch.source.engine]
        for dims, sums in period.sessions.items():
            before = standing.get(dims, 0)
            quiet = sums.cached_end == before and sums.cached_us == before * length
            self._session(f"{dims.tenant}/{dims.session}", rows.pop(dims, None), sums, size, quiet, same, near)
            standing[dims] = sums.cached_end
        for dims, row in rows.items():
            same(f"row of {dims.tenant}/{dims.session}", row, None)
        if batch.standing is not None:
            counted = {dims: count for dims, count in standing.items() if count}
            same("standing", {one.dims: one.cached_blocks for one in batch.standing}, counted)
        for dims in [dims for dims, count in standing.items() if not count]:
            del standing[dims]
        records = {record.request: record for record in batch.requests}
        self.records += len(records)
        same("admissions", {one.request for one in batch.admissions}, period.admitted)
        same("records", set(records), set(period.ended))
        for request in set(records) & set(period.ended):
            self._record(records[request], period.ended[request], size, same, near)

    def _session(
        self, who: str, row: SessionPeriod | None, sums: SessionSum, size: int, quiet: bool, same: Any, near: Any
    ) -> None:
        busy = sums.block_us or sums.compute or sums.scheduled or sums.ended or any(sums.tokens.values())
        if row is None:
            # A quiet session: it kept its cached count for the whole period.
            if busy or not quiet:
                same(f"row of {who}", None, "something")
            return
        active = total(sums.block_us)
        near(f"active of {who}", row.holding.active_block_us, active)
        near(f"unfilled of {who}", row.holding.unfilled_slot_us, total(sums.slot_us))
        near(f"held slots of {who}", row.holding.held_slot_us, active * size, size)
        near(f"compute of {who}", row.compute_us, total(sums.compute))
        same(f"cached of {who}", row.cached_block_us, sums.cached_us)
        same(f"cached at the end of {who}", row.cached_blocks_end, sums.cached_end)
        same(f"tokens of {who}", row.tokens, Tokens(**sums.tokens))
        same(f"preemptions of {who}", row.preemptions, Preemptions(**sums.preemptions))

    def _record(self, record: RequestRecord, held: Held, size: int, same: Any, near: Any) -> None:
        who = held.request
        periods = len(held.uses)
        active = sum((use[1] for use in held.uses), Fraction())
        same(f"{who}", (record.dims, record.parent, record.prompt_tokens), (held.dims, held.parent, held.prompt))
        same(f"end of {who}", (str(record.outcome), record.finish_reason), (held.outcome, held.finish_reason))
        same(f"tokens of {who}", record.tokens, Tokens(**held.tokens))
        same(f"preemptions of {who}", record.preemptions, Preemptions(**held.preemptions))
        same(f"peak of {who}", record.peak_blocks, held.peak)
        told = (record.arrived_us, record.scheduled_us, record.first_token_us, record.last_token_us, record.ended_us)
        same(f"times of {who}", told, (held.arrived_us, held.scheduled_us, held.first_us, held.last_us, held.ended_us))
        near(f"active of {who}", record.holding.active_block_us, active, periods)
        near(f"unfilled of {who}", record.holding.unfilled_slot_us, held.unfilled_total, periods)
        near(f"held slots of {who}", record.holding.held_slot_us, active * size, periods * size)
        near(f"compute of {who}", record.compute_us, sum((use[2] for use in held.uses), Fraction()), periods)
        told_uses = {use.start_us: use for use in record.uses}
        for start_us, blocks, compute in held.uses:
            use = told_uses.pop(start_us, None)
            near(f"active of {who} from {start_us}", use.active_block_us if use else 0, blocks)
            near(f"compute of {who} from {start_us}", use.compute_us if use else 0, compute)
        for use in told_uses.values():
            same(f"use of {who} from {use.start_us}", (use.active_block_us, use.compute_us), (0, 0))


def audit(lines: Iterable[str]) -> Sweep:
    """Sweep lines that are events or batches (wire documents), in the order in which they came out."""
    sweep = Sweep()
    for line in lines:
        if line.startswith('{"t_us"'):
            sweep.event(line)
        else:
            decoded = wire.decode(line.rstrip("\n").encode())
            assert not isinstance(decoded, Refusal), decoded
            sweep.batch(decoded.batch)
            sweep.compare()
    sweep.finish()
    return sweep


def _open_text(path: str) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else Path(path).open(encoding="utf-8")


def _merged(events: str, batches: str) -> Iterator[str]:
    """Events with each batch as soon as its period is over, so that few periods wait."""
    with _open_text(events) as event_lines, _open_text(batches) as batch_lines:
        batch = next(batch_lines, None)
        for line in event_lines:
            t_us = int(line[len('{"t_us":') : line.index(",")])
            while batch is not None and json.loads(batch)["batch"]["end_us"] + PERIOD_US < t_us:
                yield batch
                batch = next(batch_lines, None)
            yield line
        if batch is not None:
            yield batch
            yield from batch_lines


def _replay(arguments: argparse.Namespace) -> None:
    from ledger.reference.replay import replay  # noqa: PLC0415 - the auditor itself does not need the engine
    from ledger.reference.traces import open_trace  # noqa: PLC0415

    trace = open_trace(_trace(arguments.replay), limit=arguments.limit)
    previous: dict[str, bytes] = {}

    def emit(batch: Batch) -> None:
        raw = wire.encode(batch, previous.get(batch.source.engine, b""))
        previous[batch.source.engine] = wire.digest_of(raw)
        sys.stdout.write(raw.decode() + "\n")

    summary = replay(
        trace.requests(),
        engines=arguments.engines,
        blocks=arguments.blocks,
        block_size=arguments.block_size or trace.block_size,
        start_us=1_793_664_000_000_000,
        emit=emit,
        events=sys.stdout.write,
    )
    sys.stderr.write(f"{summary}\n")


def _trace(name: str) -> Path:
    folder = Path(os.environ.get("KVLEDGER_TRACES", Path(__file__).parents[2] / "shared" / "data"))
    return Path(name) if Path(name).exists() else folder / name


def _replayed_lines(arguments: argparse.Namespace) -> Iterator[str]:
    """What ``--replay`` prints, from a process of its own; raises if that fails."""
    command = [sys.executable, "-m", "tests.sweep", "--replay", arguments.audit]
    for name in ("limit", "engines", "blocks", "block_size"):
        value = getattr(arguments, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1 << 20) as child:
        assert child.stdout is not None
        yield from child.stdout
    assert child.returncode == 0, f"the replay ended with {child.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("events", nargs="?", default="-", help="the audit log, or - for both on standard input")
    parser.add_argument("batches", nargs="?", help="wire documents, one a line")
    parser.add_argument("--replay", metavar="TRACE", help="replay a trace instead, and print events and batches")
    parser.add_argument("--audit", metavar="TRACE", help="replay a trace in another process and compare")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--block-size", type=int)
    arguments = parser.parse_args()
    if arguments.replay:
        _replay(arguments)
        return 0
    began = time.monotonic()
    lines: Iterable[str] = sys.stdin
    if arguments.audit:
        lines = _replayed_lines(arguments)
    elif arguments.batches is not None:
        lines = _merged(arguments.events, arguments.batches)
    sweep = audit(lines)
    for breach in sweep.breaches:
        sys.stdout.write(breach + "\n")
    sys.stdout.write(
        f"{sweep.events} events, {sweep.periods} periods, {sweep.rows} session rows, {sweep.records} records:"
        f" {len(sweep.breaches)} breaches ({time.monotonic() - began:.0f} s)\n"
    )
    return 1 if sweep.breaches else 0


if __name__ == "__main__":
    raise SystemExit(main())
