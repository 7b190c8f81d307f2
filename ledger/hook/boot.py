"""One boot of an engine: its clock, its pools, its requests' lives, and the cutting of its periods.

The first event at or after a boundary of the 15-second grid closes the period exactly at the boundary, before
it is counted itself; state is constant between events. All pools of a batch share its length, so a pool that
opens or closes beside others ends the period, too.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from ledger.core.records import (
    NO_REPORT,
    PERIOD_US,
    UNATTRIBUTED,
    Batch,
    Boot,
    Dimensions,
    HookReport,
    Outcome,
    PoolClose,
    PoolOpen,
    Source,
    travelling_dimensions,
)
from ledger.hook.histograms import Log
from ledger.hook.periods import Cut, PoolCut, Settler
from ledger.hook.requests import UNPROCESSED, Request
from ledger.hook.slices import no_rest
from ledger.hook.steps import LONG_AGO, Steps
from ledger.limits import CUTS_WAITING_MAX, HOOK_REASONS_MAX, PERIODS_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ledger.core.blocks import BlockAccounts
    from ledger.core.holders import Table

HOUR_US = 3_600_000_000

NEVER = 1 << 62


class PoolAccount:
    """A pool that is open."""

    def __init__(self, opened: PoolOpen, accounts: BlockAccounts) -> None:
        self.opened = opened
        self.name = opened.pool
        self.accounts = accounts
        self.tables: list[dict[str, Table]] = [{} for _ in opened.groups]
        """By group: the tables of requests that live, or have ended and are not complete."""
        self.let_go: list[Table] = []
        """Tables of requests that have completed in the period."""
        self.leads = False
        """Whether prompts are classified here: the paying pool, or the first where none pays."""
        self._at_cut = (0, 0, 0, 0, [0] * len(opened.groups))

    def cut(self, t: int, *, closes: bool) -> PoolCut:
        accounts = self.accounts
        ticks = accounts.ticks
        fallen = ticks.n * t + ticks.acc
        groups = [n * t + acc for n, acc in zip(accounts.group_active, accounts.group_acc, strict=True)]
        now = (
            sum(groups),
            accounts.cached * t + accounts.cached_acc,
            sum(n * size for n, size in zip(groups, accounts.sizes, strict=True))
            + accounts.unfilled * t
            + accounts.unfilled_acc
            - accounts.falls * fallen,
            accounts.ahead * t + accounts.ahead_acc - accounts.ahead_falls * fallen,
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
            for table in chain(self.let_go, *[group.values() for group in self.tables])
        ]
        changed = []
        for account in accounts.touched:
            changed.append((account, account.blocks, account.blocks * t + account.acc))
            account.touched = False
            if not account.blocks:
                accounts.accounts.pop(account.dims, None)
        accounts.touched = []
        self.let_go = []
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


class BootAccount:
    """The state behind a meter. Lives on when the clock gets a new anchor; the meter in front is then another."""

    def __init__(self, source: Source, boot: Boot, emit: Callable[[Batch], None], *, settle_later: bool) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.faults: Counter[str] = Counter()
        self.off = ""
        """Why the hook has switched itself off."""
        self.skew_us = 0
        self.settle_later = settle_later
        self.settler = Settler(emit)
        self.settling = threading.Lock()
        self.cuts: deque[Cut] = deque()
        self.steps = Steps(self.fault, self.complete)
        self.pools: list[PoolAccount] = []
        self.now = LONG_AGO
        self.start(boot)

    def start(self, boot: Boot) -> None:
        self.boot = boot
        self.seq = 0
        self.period_start = boot.started_us - boot.anchor_us
        self.next = NEVER
        self.hour = -1
        self.resend = False
        self.opens: list[PoolOpen] = []
        self.closes: list[PoolClose] = []
        self.carried: list[Request] = []
        """Requests that were admitted under an earlier boot, and are again under this one."""
        self.completed: list[Request] = []
        self.cut(self.period_start)

    # -- time ----------------------------------------------------------------------------------------

    def event(self, t_us: int, *, closing: bool = False) -> int:
        """The time at which an event counts, after the periods before it have been closed."""
        if not self.now <= t_us < self.next and not (closing and t_us == self.next):
            t_us = self.turn(t_us, closing=closing)
        self.now = t_us
        return t_us

    def turn(self, t: int, *, closing: bool = False) -> int:
        if t < self.now:
            self.fault("clock_backwards")
            return self.now
        if t - self.next > PERIODS_AT_ONCE_MAX * PERIOD_US:
            self.fault("clock_leap")
            return self.now
        while t >= self.next and not (closing and t == self.next):
            boundary = self.next
            self.cut(boundary)
            self.next = boundary + PERIOD_US
        return t

    def boundary(self, t: int) -> int:
        """The first boundary after ``t``."""
        wall = self.boot.anchor_us + t
        return t + PERIOD_US - wall % PERIOD_US

    def anchor(self, t: int, boot: Boot) -> None:
        """Close the boot at ``t`` and go on as another: owners, holders and requests stay as they are."""
        old = self.boot
        for pool in self.pools:
            self.closes.append(PoolClose(pool=pool.name, at_us=old.anchor_us + t, reason="clock"))
        if self.pools or self.pending():
            self.cut(t)
        # The announcing batch of the boot has no pools yet.
        pools, self.pools = self.pools, []
        self.start(boot)
        self.pools = pools
        self.period_start = t
        self.next = self.boundary(t) if pools else NEVER
        for pool in pools:
            pool.opened = replace(pool.opened, at_us=boot.anchor_us + t)
            self.opens.append(pool.opened)
        self.carried.extend(self.steps.requests.values())

    # -- requests ------------------------------------------------------------------------------------

    def admit(self, name: str, dims: Dimensions, prompt: int, parent: str | None, arrived: int) -> Request:
        sound = travelling_dimensions(dims)  # a name that no receiver takes would cost a whole batch
        if sound is not dims:
            self.fault("name_cannot_travel")
        request = Request(name, sound, prompt=prompt, arrived_t=arrived, parent=parent)
        self.steps.requests[name] = request
        self.steps.log.arrived.append(request)
        return request

    def adopt(self, t: int, name: str) -> Request:
        """A request that nobody announced holds blocks: they belong to ``unattributed`` until it lets go."""
        request = self.admit(name, Dimensions(tenant=UNATTRIBUTED), 0, None, t)
        request.adopted = True
        return request

    def finish(self, t: int, found: Request, outcome: Outcome, finish_reason: str) -> None:
        """The request ended; it is complete once it holds nothing, and no step in flight computes for it."""
        steps = self.steps
        found.ended_t = t
        if found.steady:
            steps.rouse(t, found)
        else:
            steps.partial.pop(found.id, None)
            steps.touched[found] = None
        missed = found.prompt - found.high
        if missed > 0:
            steps.counts(found)[UNPROCESSED] += missed
        found.outcome = outcome
        found.finish_reason = finish_reason
        if steps.flight:
            found.waits = sum([1 for step in steps.flight if found in step.entries])
        steps.log.ended.append(found)
        if not found.waits and not found.holds:
            self.complete(found)

    def has_let_go(self, t: int, request: Request) -> None:
        """The request holds nothing any more."""
        if request.ended_t is not None:
            if not request.waits:
                self.complete(request)
            return
        self.steps.partial.pop(request.id, None)
        if request.adopted:
            self.finish(t, request, Outcome.FAILED, "unknown")

    def complete(self, request: Request) -> None:
        """Ended, holding nothing, and with no step in flight: its record goes out with this period."""
        if self.steps.requests.pop(request.id, None) is None:
            return
        self.completed.append(request)
        for pool in self.pools:
            for tables in pool.tables:
                table = tables.pop(request.id, None)
                if table is not None:
                    pool.let_go.append(table)

    # -- pools and periods ---------------------------------------------------------------------------

    def open(self, t: int, opened: PoolOpen, accounts: BlockAccounts) -> PoolAccount:
        pool = PoolAccount(opened, accounts)
        if self.pools and t > self.period_start:
            self.cut(t)
        self.period_start = accounts.period_start = t
        self.next = self.boundary(t)
        self.pools.append(pool)
        self.steps.pools.append(accounts)
        self.opens.append(opened)
        self.choose_lead()
        return pool

    def choose_lead(self) -> None:
        lead = next((pool for pool in self.pools if pool.opened.paying), self.pools[0] if self.pools else None)
        for pool in self.pools:
            pool.leads = pool is lead

    def close_pools(self, t: int, pools: Collection[PoolAccount], reason: str) -> None:
        """The pools go away with all that is in them; the period ends at ``t``."""
        lead_goes = any(pool.leads for pool in pools)
        gone = {pool.accounts for pool in pools}
        for pool in pools:
            self.closes.append(PoolClose(pool=pool.name, at_us=self.boot.anchor_us + t, reason=reason))
        for request in list(self.steps.requests.values()):
            if request.steady and (lead_goes or any(table.pool in gone for table in request.tables)):
                self.steps.rouse(t, request)
            left = any(table.own or table.nodes for table in request.tables if table.pool not in gone)
            if request.ended_t is not None and not request.waits and not left:
                request.note_peak(request.held)
                self.complete(request)
        self.cut(t, {pool.name for pool in pools})
        for request in self.steps.requests.values():
            self._lose(t, request, gone, again=lead_goes)
        self.pools = [pool for pool in self.pools if pool not in pools]
        self.steps.pools = [pool.accounts for pool in self.pools]
        self.choose_lead()
        if not self.pools:
            self.next = NEVER
        elif self.next <= t:
            self.next = self.boundary(t)

    def _lose(self, t: int, request: Request, gone: set[BlockAccounts], *, again: bool) -> None:
        """The request has lost what it held in some pools; ``again``: it starts from its first position."""
        request.note_peak(request.held)
        request.tables = [table for table in request.tables if table.pool not in gone]
        if not request.holds:
            self.steps.partial.pop(request.id, None)
        if again:
            for table in request.tables:
                table.pool.detach(t, table)
            request.frontier = request.loose = 0
            request.generation += 1

    def pending(self) -> bool:
        return bool(self.opens or self.closes or self.carried or self.completed or self.steps.touched or self.steps.log)

    def cut(self, t: int, closing: set[str] | frozenset[str] = frozenset()) -> None:
        """End the period at ``t``: copy what will change, and hand the rest over."""
        steps = self.steps
        start = self.period_start if self.pools else t
        wall = self.boot.anchor_us + start
        lead = next((pool.name for pool in self.pools if pool.leads), "")
        self.seq += 1
        cut = Cut(
            source=self.source,
            boot=self.boot,
            seq=self.seq,
            start_t=start,
            end_t=t,
            lead=lead,
            skew_us=self.skew_us,
            pools=[pool.cut(t, closes=pool.name in closing) for pool in self.pools],
            steady=[(request, request.compute, request.output) for request in steps.steady.values()],
            weight=steps.weight,
            ended_steps=steps.ended,
            touched=self._take_touched(),
            complete=self.completed,
            steps=steps.period_steps,
            step_us=steps.period_step_us,
            system_compute=steps.system_compute,
            stray_compute=steps.stray_compute,
            opens=self.opens,
            closes=self.closes,
            admissions=[*self.carried, *steps.log.arrived],
            log=steps.log,
            hook=self.report() if self.faults or self.off else NO_REPORT,
        )
        if self.pools and (self.resend or wall // HOUR_US != self.hour or self.opens):
            cut.standing = True
            self.resend = False
            self.hour = wall // HOUR_US
        self.opens, self.closes, self.carried, self.completed = [], [], [], []
        steps.log = Log()
        steps.period_steps = steps.period_step_us = steps.system_compute = steps.stray_compute = 0
        self.period_start = t
        self.cuts.append(cut)
        if not self.settle_later:
            self.settle()
        elif len(self.cuts) > CUTS_WAITING_MAX and self.settling.acquire(blocking=False):
            self.settling.release()
            self.settle(1)

    def _take_touched(self) -> list[tuple[Request, int, int, list[int] | None]]:
        """Requests with counts of their own in the period; the counts are handed over, not copied."""
        steps = self.steps
        taken = [
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
        steps.touched = {}
        return taken

    def settle(self, limit: int | None = None, rest: Callable[[], None] = no_rest) -> int:
        """Settle and emit waiting periods, oldest first, at most ``limit``; returns how many it were."""
        done = 0
        with self.settling:
            self.settler.rest = rest
            while self.cuts and (limit is None or done < limit):
                cut = self.cuts.popleft()
                try:
                    self.settler.emit(self.settler.settle(cut))
                except Exception:  # noqa: BLE001  # a receiver that fails must not reach the engine
                    self.broken()
                done += 1
        return done

    # -- faults --------------------------------------------------------------------------------------

    def fault(self, reason: str) -> None:
        self.faults[reason] += 1

    def report(self) -> HookReport:
        """What the hook has to say of itself; the outbox adds what it dropped."""
        # A copy in one step of the interpreter: the drain thread may count a fault meanwhile.
        faults = sorted(dict(self.faults).items())[:HOOK_REASONS_MAX]
        return HookReport(faults=tuple((reason, count) for reason, count in faults if count > 0), off=self.off)

    def broken(self) -> None:
        """An argument that cannot be used, or a bug: the engine does not hear of it."""
        self.faults["internal"] += 1
