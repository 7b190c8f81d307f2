"""The meter: engine events in, the facts of each period out. The interface is docs/hook.md.

A guest in somebody's engine: nothing raises. What cannot be (a release of a block that is not held, a clock
that runs backwards) is a *fault*, counted by reason in :attr:`Meter.faults`; the account stays consistent.

Times are the engine's monotonic microseconds and never fall. The first event at or after a boundary of the
15-second grid closes the period exactly at the boundary, before it is counted itself.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ledger.core.blocks import BlockAccounts, Key, Table, held_blocks
from ledger.core.records import (
    PERIOD_US,
    UNATTRIBUTED,
    Batch,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    Outcome,
    PoolClose,
    PoolOpen,
    PreemptionReason,
    Shard,
    Source,
)
from ledger.hook.histograms import Log
from ledger.hook.periods import Cut, PoolCut, Settler
from ledger.hook.requests import (
    KV_FULL,
    OTHER,
    OTHERS,
    OWN,
    PRIORITY,
    RESET,
    TRANSFERRED,
    UNPROCESSED,
    Request,
    cover,
)
from ledger.hook.steps import LONG_AGO, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NOTHING: Mapping[str, int] = {}

HOUR_US = 3_600_000_000

PERIODS_AT_ONCE_MAX = 7 * 24 * 240
"""A week in one go: a longer leap of the clock is a fault, or a wrong time would keep the engine busy for ever."""

CUTS_WAITING_MAX = 240
"""An hour of unsettled periods; beyond it the engine's thread settles, or memory would grow without bound."""

NEVER = 1 << 62

_REASONS = {
    PreemptionReason.KV_FULL: KV_FULL,
    PreemptionReason.PRIORITY: PRIORITY,
    PreemptionReason.RESET: RESET,
    PreemptionReason.OTHER: OTHER,
}


class PoolMeter:
    """The account of one pool: made by :meth:`Meter.open`."""

    def __init__(self, meter: Meter, opened: PoolOpen, accounts: BlockAccounts) -> None:
        self._meter = meter
        self._accounts = accounts
        self._tables: list[dict[str, Table]] = [{} for _ in opened.groups]
        # What the frequent case of acquire() needs, a step nearer.
        self._owner = accounts.owner
        self._computed_by = accounts.computed_by
        self._active = accounts.group_active
        self._active_acc = accounts.group_acc
        self._last = accounts.blocks
        self._plain = not accounts.lookahead
        self.opened = opened
        self.name = opened.pool
        self.leads = False
        """Whether prompts are classified here: the paying pool, or the first where none pays."""
        self._at_cut = (0, 0, 0, 0, [0] * len(opened.groups))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Active, cached and free blocks at this moment."""
        accounts = self._accounts
        return accounts.active, accounts.cached, accounts.blocks - accounts.active - accounts.cached

    def acquire(
        self,
        t_us: int,
        request: str,
        group: int,
        *,
        hit: Sequence[int] = (),
        loaded: Sequence[int] = (),
        new: Sequence[int] = (),
        covered_tokens: int | None = None,
    ) -> None:
        """``request`` takes blocks, in the order of its block table: first hits, then loaded, then new ones."""
        meter = self._meter
        try:
            if t_us != meter._now:
                if not meter._now <= t_us < meter._next:
                    t_us = meter._turn(t_us)
                meter._now = t_us
            table = self._tables[group].get(request)
            if table is None:
                table = self._new_table(t_us, request, group)
            elif table.falls and len(new) == 1 and not hit and not loaded and self._plain:
                # The frequent case: a request in decode takes its next block. An empty one changes none of the
                # slot counts (see Table.unfilled), so this is all of it.
                block = new[0]
                if 0 < block < self._last and self._owner[block] is None:
                    self._owner[block] = table
                    self._computed_by[block] = table.holder.key  # type: ignore[attr-defined]
                    table.own += 1
                    table.acc -= t_us
                    self._active[group] += 1
                    self._active_acc[group] -= t_us
                    table.holder.held += 1
                    table.order.append(block)
                    size = table.size
                    table.end += size
                    table.due += size
                    return
            holder: Request = table.holder  # type: ignore[assignment]  # the meter's holders are requests
            if hit or loaded:
                self._take_content(t_us, holder, table, hit, loaded, covered_tokens)
            elif not table.order and table.size:
                self._align(holder, table, 0)
            if new:
                self._accounts.take_new(t_us, table, holder.key, new)
            if not holder.steady and holder.held:
                meter._steps.partial[request] = holder
        except Exception:
            meter._broken()

    def _new_table(self, t: int, name: str, group: int) -> Table:
        meter = self._meter
        request = meter._steps.requests.get(name)
        if request is None:
            meter._fault("unknown_request")
            request = meter._adopt(t, name)
        elif request.ended_t is not None:
            meter._fault("ended_request")
        table = self._accounts.table(request, group, request.dims)
        self._tables[group][name] = table
        return table

    def _align(self, holder: Request, table: Table, full: int) -> None:
        """Where the first block of a group's table lies: groups beside the first skip what they need not hold."""
        if not self.leads or not table.group:
            return
        frontier = holder.frontier + (self._meter._steps.ticks.n if holder.steady else 0)
        size = table.size
        end = max(full * size, -(-frontier // size) * size) if full else frontier // size * size
        table.base = table.end = table.tail = end - full * size

    def _take_content(
        self,
        t: int,
        holder: Request,
        table: Table,
        hit: Sequence[int],
        loaded: Sequence[int],
        covered_tokens: int | None,
    ) -> None:
        steps = self._meter._steps
        accounts = self._accounts
        owners = accounts.owners(hit) if hit else ()
        if loaded:
            accounts.owners(loaded)
        if holder.steady:
            steps.rouse(t, holder)
        if self.leads and not table.group and holder.ended_t is None:
            size = table.size or 1
            by = accounts.computed_by
            runs: list[tuple[int, int]] = []
            writers = [by[block] for block in hit] if len(hit) < 2 else itemgetter(*hit)(by)
            own = writers.count(holder.key)
            if own in (0, len(hit)):
                runs.append((OWN if own else OTHERS, len(hit) * size))
            else:
                runs.extend((OWN if writer is holder.key else OTHERS, size) for writer in writers)
            runs.append((TRANSFERRED, len(loaded) * size))
            tokens = (len(hit) + len(loaded)) * size if covered_tokens is None else max(covered_tokens, 0)
            cover(holder, steps.counts(holder), tokens, runs)
            for other in holder.tables:
                if other.order:
                    other.pool.moved(t, other)
        if not table.order and table.size:
            self._align(holder, table, len(hit) + len(loaded))
        if hit:
            accounts.take_hit(t, table, hit, owners)
        if loaded:
            accounts.take_full(t, table, loaded)

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """``request`` lets ``blocks`` go; ``cached`` and ``freed`` are those among them that nobody holds any more."""
        meter = self._meter
        try:
            if not meter._now <= t_us < meter._next:
                t_us = meter._turn(t_us)
            meter._now = t_us
            if not blocks:
                return
            holder = meter._steps.requests.get(request)
            if holder is None:
                meter._fault("unknown_request")
                return
            # Blocks held only grow between two releases, so here is where to look for the most.
            holder.peak_blocks = max(holder.peak_blocks, holder.held)
            self._accounts.release(t_us, holder, blocks, cached, freed)
            if not holder.held:
                meter._steps.partial.pop(request, None)
                if holder.adopted and holder.ended_t is None:
                    meter.finish(t_us, request, Outcome.FAILED, "unknown")
                elif holder.ended_t is not None and not holder.waits:
                    meter._complete(holder)
        except Exception:
            meter._broken()

    def evict(self, t_us: int, blocks: Sequence[int]) -> None:
        """Cached blocks lose their content and become free."""
        meter = self._meter
        try:
            if not meter._now <= t_us < meter._next:
                t_us = meter._turn(t_us)
            meter._now = t_us
            if blocks:
                self._accounts.evict(t_us, blocks)
        except Exception:
            meter._broken()

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        """The pool goes away with all that is in it; the period is cut at ``t_us``."""
        meter = self._meter
        try:
            if self not in meter._pools:
                meter._fault("pool_not_open")
                return
            meter._close_pools(meter._event(t_us, closing=True), (self,), reason)
        except Exception:
            meter._broken()

    def _cut(self, t: int, *, closes: bool) -> PoolCut:
        accounts = self._accounts
        ticks = accounts.ticks
        groups = [n * t + acc for n, acc in zip(accounts.group_active, accounts.group_acc, strict=True)]
        now = (
            sum(groups),
            accounts.cached * t + accounts.cached_acc,
            sum(n * size for n, size in zip(groups, accounts.sizes, strict=True))
            + accounts.unfilled * t
            + accounts.unfilled_acc,
            accounts.ahead * t + accounts.ahead_acc,
            groups,
        )
        was = self._at_cut
        self._at_cut = now
        tables = [
            (
                table,
                table.own,
                table.acc,
                table.nodes,
                table.shared,
                table.unfilled,
                table.unfilled_acc,
                table.falls,
                table.ahead,
                table.ahead_acc,
                table.ahead_falls,
                table.shared_unfilled,
                table.shared_ahead,
            )
            for group in (accounts.holding, accounts.let_go)
            for table in group
        ]
        changed = []
        for account in accounts.touched:
            changed.append((account, account.blocks, account.blocks * t + account.acc))
            account.touched = False
            if not account.blocks and not account.tables:
                accounts.accounts.pop(account.dims, None)
        accounts.touched = []
        accounts.let_go = []
        accounts.period_start = t
        return PoolCut(
            name=self.name,
            blocks=accounts.blocks,
            sizes=accounts.sizes,
            active_us=now[0] - was[0],
            cached_us=now[1] - was[1],
            unfilled_us=now[2] - was[2],
            ahead_us=now[3] - was[3],
            group_us=[new - old for new, old in zip(now[4], was[4], strict=True)],
            active_end=accounts.active,
            cached_end=accounts.cached,
            tables=tables,
            nodes={node: node.values(t) for node in accounts.leaves},
            accounts=changed,
            ticks=(ticks.n, ticks.acc),
            closes=closes,
        )


class Meter:
    """All accounts of one engine and one boot. ``emit`` gets each batch once its period is over and settled.

    Times are the engine's monotonic microseconds; the boot's anchor turns them into wall time. One thread at
    a time: an engine with a drain thread holds :attr:`lock` around its calls, and so does the drain thread
    around :meth:`advance`. With ``settle_later`` a period is only cut on the calling thread, and
    :meth:`settle` (on the drain thread, without the lock) makes and emits its batch.
    """

    def __init__(
        self, source: Source, boot: Boot, emit: Callable[[Batch], None], *, settle_later: bool = False
    ) -> None:
        self.source = source
        self.boot = boot
        self.lock = threading.Lock()
        self.faults: Counter[str] = Counter()
        self.skew_us = 0
        """The engine's wall minus the system clock, as the caller last saw it."""
        self._settle_later = settle_later
        self._settler = Settler(emit)
        self._settling = threading.Lock()
        self._cuts: deque[Cut] = deque()
        self._keys: WeakValueDictionary[tuple[str, str], Key] = WeakValueDictionary()
        self._steps = Steps(self._fault, self._complete)
        self._pools: list[PoolMeter] = []
        self._now = LONG_AGO
        self._start(boot)

    def _start(self, boot: Boot) -> None:
        self._seq = 0
        self._period_start = boot.started_us - boot.anchor_us
        self._next = NEVER
        self._hour = -1
        self._resend = False
        self._opens: list[PoolOpen] = []
        self._closes: list[PoolClose] = []
        self._admissions: list[Request] = []
        self._completed: list[Request] = []
        self._cut(self._period_start)

    # -- the engine's events -------------------------------------------------------------------------

    def open(
        self,
        t_us: int,
        pool: str,
        *,
        blocks: int,
        groups: Sequence[Group],
        shards: Sequence[Shard] = (),
        model: str = "",
        paying: bool = True,
        cached: Sequence[int] = (),
        lookahead_tokens: int = 0,
    ) -> PoolMeter:
        """A pool of ``blocks`` usable blocks; ``cached`` are ids whose content was there before, owner unknown."""
        t = self._event(t_us)
        if any(other.name == pool for other in self._pools):
            self._fault("pool_is_open")
            self._close_pools(t, [other for other in self._pools if other.name == pool], "off")
        if paying and any(other.opened.paying for other in self._pools):
            self._fault("second_paying_pool")
            paying = False
        accounts = BlockAccounts(
            blocks,
            groups,
            [0 if group.kind is GroupKind.STATE else group.block_size for group in groups],
            self._steps.ticks,
            lookahead=lookahead_tokens,
            fault=self._fault,
            unsteady=self._steps.make_unsteady,
        )
        opened = PoolOpen(
            pool=pool,
            at_us=self.boot.anchor_us + t,
            blocks=blocks,
            groups=tuple(groups),
            shards=tuple(shards),
            model=model,
            paying=paying,
        )
        meter = PoolMeter(self, opened, accounts)
        # All pools of a batch share its length, so a period in progress ends here.
        if self._pools and t > self._period_start:
            self._cut(t)
        self._period_start = accounts.period_start = t
        self._next = self._boundary(t)
        self._pools.append(meter)
        self._steps.pools.append(accounts)
        self._opens.append(opened)
        self._choose_lead()
        if cached:
            try:
                accounts.owners(cached)
                accounts.put_cached(t, accounts.account(Dimensions(tenant=UNATTRIBUTED)), list(dict.fromkeys(cached)))
            except Exception:
                self._broken()
        return meter

    def request(
        self,
        t_us: int,
        request: str,
        dims: Dimensions,
        *,
        prompt_tokens: int,
        parent: str | None = None,
        arrived_us: int | None = None,
    ) -> None:
        """A core request was received (``arrived_us``: when, if earlier than ``t_us``)."""
        try:
            t = self._event(t_us)
            if request in self._steps.requests:
                self._fault("request_twice")
                return
            arrived = t if arrived_us is None else min(arrived_us, t)
            self._admit(request, dims, max(prompt_tokens, 0), parent, arrived)
        except Exception:
            self._broken()

    def scheduled(self, t_us: int, tokens: Mapping[str, int], total: int) -> None:
        """A step was scheduled: ``tokens`` per request, summing to ``total``. The mapping is read, not kept."""
        try:
            if not self._now <= t_us < self._next:
                t_us = self._turn(t_us)
            self._now = t_us
            self._steps.schedule(t_us, tokens, total)
        except Exception:
            self._broken()

    def stepped(self, t_us: int, accepted: Mapping[str, int] = NOTHING) -> None:
        """The oldest scheduled step ended.

        ``accepted`` names the requests whose accepted output tokens differ from the ordinary: 1 where the
        scheduled tokens reached the end of what was known (prompt and output so far), else 0.
        """
        try:
            if not self._now <= t_us < self._next:
                t_us = self._turn(t_us)
            self._now = t_us
            self._steps.end(t_us, accepted)
        except Exception:
            self._broken()

    def preempt(self, t_us: int, request: str, reason: PreemptionReason = PreemptionReason.KV_FULL) -> None:
        """A running request goes back to waiting; its blocks are released by :meth:`PoolMeter.release`."""
        try:
            t = self._event(t_us)
            found = self._steps.requests.get(request)
            if found is None or found.ended_t is not None:
                self._fault("unknown_request" if found is None else "ended_request")
                return
            if found.steady:
                self._steps.rouse(t, found)
            self._steps.counts(found)[_REASONS[reason]] += 1
            for table in found.tables:
                table.pool.detach(t, table)
            found.frontier = found.loose = 0
            found.generation += 1
        except Exception:
            self._broken()

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = "") -> None:
        """The request ended. Its record goes out once it has let go of its last block, too."""
        try:
            t = self._event(t_us)
            found = self._steps.requests.get(request)
            if found is None or found.ended_t is not None:
                self._fault("unknown_request" if found is None else "ended_request")
                return
            steps = self._steps
            if found.steady:
                steps.rouse(t, found)
            missed = found.prompt - found.high
            if missed > 0:
                steps.counts(found)[UNPROCESSED] += missed
            steps.touched[found] = None
            found.ended_t = t
            found.outcome = outcome
            found.finish_reason = finish_reason
            found.waits = sum([1 for step in steps.flight if found in step.entries])
            log = steps.log
            log.length_out.append((found.label, max(found.output, 0)))
            if outcome is Outcome.FINISHED:
                log.end_to_end.append((found.label, t - found.arrived_t))
            if not found.held and not found.waits:
                self._complete(found)
        except Exception:
            self._broken()

    def advance(self, t_us: int) -> None:
        """Close every period that ended at or before ``t_us`` (the drain thread's heartbeat on an idle engine).

        A time before the last event changes nothing: the engine is not idle, and closes its periods itself.
        """
        try:
            if t_us >= self._now:
                self._event(t_us)
        except Exception:
            self._broken()

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        """Close the pools that are open, and the last period, at ``t_us``.

        Requests that have ended get their records, whatever they still hold; those that have not are lost.
        """
        try:
            t = self._event(t_us, closing=True)
            for request in list(self._steps.requests.values()):
                if request.ended_t is not None:
                    self._complete(request)
            if self._pools:
                self._close_pools(t, list(self._pools), reason)
            elif self._pending():
                self._cut(t)
        except Exception:
            self._broken()

    # -- beside the events ---------------------------------------------------------------------------

    def resend_standing(self) -> None:
        """The receiver has missed something: all standing counts go along with the next batch."""
        self._resend = True

    def settle(self, limit: int | None = None, *, pause: Callable[[], None] | None = None) -> int:
        """Settle and emit waiting periods, oldest first, at most ``limit``; returns how many it were.

        ``pause`` is called every few rows: a drain thread sleeps there, so that the engine's thread gets the GIL.
        """
        done = 0
        with self._settling:
            self._settler.pause = pause
            while self._cuts and (limit is None or done < limit):
                cut = self._cuts.popleft()
                try:
                    self._settler.emit(self._settler.settle(cut))
                except Exception:
                    self._broken()
                done += 1
        return done

    def successor(self, t_us: int, boot: Boot) -> Meter:
        """The clock gets a new anchor: closes this boot (``clock``) and carries everything over to the next.

        Owners, holders and requests go on, the :class:`PoolMeter` objects stay valid, and the pools are opened
        and the requests admitted again under the new boot. This meter is spent.
        """
        t = self._event(t_us, closing=True)
        old = self.boot
        following = Meter.__new__(Meter)
        following.__dict__.update(self.__dict__)
        for pool in self._pools:
            self._closes.append(PoolClose(pool=pool.name, at_us=old.anchor_us + t, reason="clock"))
        if self._pools or self._pending():
            self._cut(t)
        following.boot = boot
        steps = following._steps
        steps.fault = following._fault
        steps.complete = following._complete
        following._now = t
        # The announcing batch of the boot has no pools yet.
        following._pools = []
        following._start(boot)
        following._pools = self._pools
        following._period_start = t
        if following._pools:
            following._next = following._boundary(t)
        for pool in following._pools:
            pool._meter = following
            pool._accounts.fault = following._fault
            shift = boot.anchor_us - old.anchor_us
            opened = pool.opened
            pool.opened = PoolOpen(
                pool=opened.pool,
                at_us=old.anchor_us + t + shift,
                blocks=opened.blocks,
                groups=opened.groups,
                shards=opened.shards,
                model=opened.model,
                paying=opened.paying,
            )
            following._opens.append(pool.opened)
        for request in steps.requests.values():
            following._admissions.append(request)
        self._pools = []
        self._next = NEVER
        self._steps = Steps(self._fault, self._complete)
        return following

    # -- time ----------------------------------------------------------------------------------------

    def _event(self, t_us: int, *, closing: bool = False) -> int:
        """The time at which an event counts, after the periods before it have been closed."""
        if not self._now <= t_us < self._next and not (closing and t_us == self._next):
            t_us = self._turn(t_us, closing=closing)
        self._now = t_us
        return t_us

    def _turn(self, t: int, *, closing: bool = False) -> int:
        if t < self._now:
            self._fault("clock_backwards")
            return self._now
        if t - self._next > PERIODS_AT_ONCE_MAX * PERIOD_US:
            self._fault("clock_leap")
            return self._now
        while t >= self._next and not (closing and t == self._next):
            boundary = self._next
            self._cut(boundary)
            self._next = boundary + PERIOD_US
        return t

    def _boundary(self, t: int) -> int:
        """The first boundary after ``t``."""
        wall = self.boot.anchor_us + t
        return t + PERIOD_US - wall % PERIOD_US

    # -- requests ------------------------------------------------------------------------------------

    def _admit(self, name: str, dims: Dimensions, prompt: int, parent: str | None, arrived: int) -> Request:
        identity = (dims.tenant, dims.session)
        key = self._keys.get(identity)
        if key is None:
            key = self._keys[identity] = Key(*identity)
        request = Request(name, dims, key, prompt=prompt, arrived_t=arrived, parent=parent)
        self._steps.requests[name] = request
        self._admissions.append(request)
        self._steps.log.length_in.append((request.label, prompt))
        return request

    def _adopt(self, t: int, name: str) -> Request:
        """A request that nobody announced holds blocks: they belong to ``unattributed`` until it lets go."""
        request = self._admit(name, Dimensions(tenant=UNATTRIBUTED), 0, None, t)
        request.adopted = True
        return request

    def _complete(self, request: Request) -> None:
        """Ended, holding nothing, and with no step in flight: its record goes out with this period."""
        if self._steps.requests.pop(request.id, None) is None:
            return
        self._steps.partial.pop(request.id, None)
        request.peak_blocks = max(request.peak_blocks, request.held)
        self._completed.append(request)
        for pool in self._pools:
            for tables in pool._tables:
                table = tables.pop(request.id, None)
                if table is not None:
                    pool._accounts.forget(table)

    # -- pools and periods ---------------------------------------------------------------------------

    def _choose_lead(self) -> None:
        lead = next((pool for pool in self._pools if pool.opened.paying), self._pools[0] if self._pools else None)
        for pool in self._pools:
            pool.leads = pool is lead

    def _close_pools(self, t: int, pools: Sequence[PoolMeter], reason: str) -> None:
        for pool in pools:
            self._closes.append(PoolClose(pool=pool.name, at_us=self.boot.anchor_us + t, reason=reason))
        gone = {pool._accounts for pool in pools}
        closing = {pool.name for pool in pools}
        waiting = []
        for request in self._steps.requests.values():
            mine = [table for table in request.tables if table.pool in gone]
            if mine and request.steady:
                self._steps.rouse(t, request)
            if request.ended_t is not None and not request.waits:
                elsewhere = request.held - sum([held_blocks(table) for table in mine])
                if not elsewhere:
                    waiting.append(request)
        for request in waiting:
            self._complete(request)
        self._cut(t, closing)
        for request in self._steps.requests.values():
            request.peak_blocks = max(request.peak_blocks, request.held)
            for table in request.tables:
                if table.pool in gone:
                    request.held -= held_blocks(table)
            request.tables = [table for table in request.tables if table.pool not in gone]
            if not request.held:
                self._steps.partial.pop(request.id, None)
        lead_gone = any(pool.leads for pool in pools)
        self._pools = [pool for pool in self._pools if pool not in pools]
        self._steps.pools = [pool._accounts for pool in self._pools]
        if lead_gone:
            for request in self._steps.requests.values():
                request.frontier = request.loose = 0
                request.generation += 1
        self._choose_lead()
        if not self._pools:
            self._next = NEVER
        elif self._next <= t:
            self._next = self._boundary(t)

    def _pending(self) -> bool:
        return bool(
            self._opens or self._closes or self._admissions or self._completed or self._steps.touched or self._steps.log
        )

    def _cut(self, t: int, closing: set[str] | frozenset[str] = frozenset()) -> None:
        """End the period at ``t``: copy what will change, and hand the rest over."""
        steps = self._steps
        start = self._period_start if self._pools else t
        wall = self.boot.anchor_us + start
        lead = next((pool.name for pool in self._pools if pool.leads), "")
        touched = [
            (
                request,
                request.compute + steps.weight if request.steady else request.compute,
                request.output + steps.ended if request.steady else request.output,
                request.counts,
            )
            for request in steps.touched
        ]
        for request in steps.touched:
            request.counts = None
        self._seq += 1
        cut = Cut(
            source=self.source,
            boot=self.boot,
            seq=self._seq,
            start_t=start,
            end_t=t,
            lead=lead,
            skew_us=self.skew_us,
            pools=[pool._cut(t, closes=pool.name in closing) for pool in self._pools],
            steady=[(request, request.compute, request.output) for request in steps.steady.values()],
            weight=steps.weight,
            ended_steps=steps.ended,
            touched=touched,
            complete=self._completed,
            steps=steps.period_steps,
            step_us=steps.period_step_us,
            system_compute=steps.system_compute,
            stray_compute=steps.stray_compute,
            opens=self._opens,
            closes=self._closes,
            admissions=self._admissions,
            log=steps.log,
        )
        if self._pools and (self._resend or wall // HOUR_US != self._hour or self._opens):
            cut.standing = True
            self._resend = False
            self._hour = wall // HOUR_US
        self._opens, self._closes, self._admissions, self._completed = [], [], [], []
        steps.touched = {}
        steps.log = Log()
        steps.period_steps = steps.period_step_us = steps.system_compute = steps.stray_compute = 0
        self._period_start = t
        self._cuts.append(cut)
        if not self._settle_later:
            self.settle()
        elif len(self._cuts) > CUTS_WAITING_MAX and self._settling.acquire(blocking=False):
            self._settling.release()
            self.settle(1)

    # -- faults --------------------------------------------------------------------------------------

    def _fault(self, reason: str) -> None:
        self.faults[reason] += 1

    def _broken(self) -> None:
        """An argument that cannot be used, or a bug: the engine does not hear of it."""
        self.faults["internal"] += 1
