"""The meter: engine events in, the facts of each period out. The interface is docs/hook.md.

A guest in somebody's engine: nothing raises. What cannot be (a release of a block that is not held, a clock
that runs backwards) is a *fault*, counted by reason in :attr:`Meter.faults`; the account stays consistent.

Times are the engine's monotonic microseconds and never fall.
"""

# ruff: noqa: BLE001
# Whatever goes wrong in here must not reach the engine: each call catches everything, and counts it.

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.blocks import BlockAccounts
from ledger.core.records import (
    HOOK_OFF,
    UNATTRIBUTED,
    Batch,
    Boot,
    Dimensions,
    Group,
    GroupKind,
    PoolOpen,
    PreemptionReason,
    Shard,
    Source,
    one_line,
)
from ledger.hook.boot import BootAccount
from ledger.hook.pool import PoolMeter
from ledger.hook.requests import KV_FULL, OTHER, PRIORITY, RESET
from ledger.hook.slices import no_rest

if TYPE_CHECKING:
    import threading
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence

    from ledger.core.records import Outcome

NOTHING: Mapping[str, int] = {}

_REASONS = {
    PreemptionReason.KV_FULL: KV_FULL,
    PreemptionReason.PRIORITY: PRIORITY,
    PreemptionReason.RESET: RESET,
    PreemptionReason.OTHER: OTHER,
}


class Meter:
    """All accounts of one engine and one boot. ``emit`` gets each batch once its period is over and settled.

    Times are the engine's monotonic microseconds; the boot's anchor turns them into wall time. One thread at
    a time: an engine with a drain thread holds :attr:`lock` around its calls, and so does the drain thread
    around :meth:`advance`. With ``settle_later`` a period is only cut on the calling thread, and
    :meth:`settle` (on the drain thread, without the lock) makes and emits its batch.
    """

    def __init__(
        self,
        source: Source,
        boot: Boot,
        emit: Callable[[Batch], None],
        *,
        settle_later: bool = False,
        carried: BootAccount | None = None,
    ) -> None:
        """``carried`` is for :meth:`successor` alone."""
        self._boot = carried or BootAccount(source, boot, emit, settle_later=settle_later)

    @property
    def source(self) -> Source:
        return self._boot.source

    @property
    def boot(self) -> Boot:
        return self._boot.boot

    @property
    def lock(self) -> threading.Lock:
        """Held by whoever calls, where more than one thread does."""
        return self._boot.lock

    @property
    def faults(self) -> Counter[str]:
        """What could not be, by reason (docs/hook.md lists them)."""
        return self._boot.faults

    @property
    def skew_us(self) -> int:
        """The engine's wall minus the system clock, as the caller last saw it; travels with each batch."""
        return self._boot.skew_us

    @skew_us.setter
    def skew_us(self, skew_us: int) -> None:
        self._boot.skew_us = skew_us

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
        boot = self._boot
        t = boot.event(t_us)
        if any(other.name == pool for other in boot.pools):
            boot.fault("pool_is_open")
            boot.close_pools(t, [other for other in boot.pools if other.name == pool], "off")
        if paying and any(other.opened.paying for other in boot.pools):
            boot.fault("second_paying_pool")
            paying = False
        accounts = BlockAccounts(
            blocks,
            groups,
            [0 if group.kind is GroupKind.STATE else group.block_size for group in groups],
            boot.steps.ticks,
            lookahead=lookahead_tokens,
            fault=boot.fault,
            unsteady=boot.steps.make_unsteady,
        )
        opened = PoolOpen(
            pool=pool,
            at_us=boot.boot.anchor_us + t,
            blocks=blocks,
            groups=tuple(groups),
            shards=tuple(shards),
            model=model,
            paying=paying,
        )
        meter = PoolMeter(boot, boot.open(t, opened, accounts))
        if cached:
            try:
                accounts.owners(cached)
                accounts.put_cached(t, accounts.account(Dimensions(tenant=UNATTRIBUTED)), list(dict.fromkeys(cached)))
            except Exception:
                boot.broken()
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
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            if request in boot.steps.requests:
                boot.fault("request_twice")
                return
            arrived = t_us if arrived_us is None or arrived_us > t_us else arrived_us
            boot.admit(request, dims, prompt_tokens if prompt_tokens > 0 else 0, parent, arrived)
        except Exception:
            boot.broken()

    def scheduled(self, t_us: int, tokens: Mapping[str, int], total: int) -> None:
        """A step was scheduled: ``tokens`` per request, summing to ``total``. The mapping is read, not kept."""
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            boot.steps.schedule(t_us, tokens, total)
        except Exception:
            boot.broken()

    def stepped(self, t_us: int, accepted: Mapping[str, int] = NOTHING) -> None:
        """The oldest scheduled step ended.

        ``accepted`` names the requests whose accepted output tokens differ from the ordinary: 1 where the
        scheduled tokens reached the end of what was known (prompt and output so far), else 0.
        """
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            boot.steps.end(t_us, accepted)
        except Exception:
            boot.broken()

    def phases(self, t_us: int, durations_us: Mapping[str, int], *, shard: str = "", method: str = "wall") -> None:
        """How long the parts of one step took (docs/hook.md names them), of one rank where ``shard`` names it.

        They count in the period of ``t_us``; a time before the last event is that event's, for parts are often told
        late. The mapping is kept.
        """
        boot = self._boot
        try:
            if t_us >= boot.now:
                boot.event(t_us)
            if not boot.steps.log.phased(durations_us, shard, method):
                boot.fault("phase_unclear")
        except Exception:
            boot.broken()

    def preempt(
        self,
        t_us: int,
        request: str,
        reason: PreemptionReason = PreemptionReason.KV_FULL,
        *,
        drops_output: bool = False,
    ) -> None:
        """A running request goes back to waiting; its blocks are released by :meth:`PoolMeter.release`.

        With ``drops_output`` what the steps in flight give it will be thrown away: it goes on from what it has.
        """
        boot = self._boot
        try:
            t = boot.event(t_us)
            found = boot.steps.requests.get(request)
            if found is None or found.ended_t is not None:
                boot.fault("unknown_request" if found is None else "ended_request")
                return
            if found.steady:
                boot.steps.rouse(t, found)
            boot.steps.counts(found)[_REASONS[reason]] += 1
            if drops_output:
                boot.steps.drop(found)
            for table in found.tables:
                table.pool.detach(t, table)
            found.frontier = found.loose = 0
            found.generation += 1
        except Exception:
            boot.broken()

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = "") -> None:
        """The request ended. Its record goes out once it has let go of its last block, too."""
        boot = self._boot
        try:
            if t_us != boot.now:
                if not boot.now <= t_us < boot.next:
                    t_us = boot.turn(t_us)
                boot.now = t_us
            found = boot.steps.requests.get(request)
            if found is None or found.ended_t is not None:
                boot.fault("unknown_request" if found is None else "ended_request")
                return
            boot.finish(t_us, found, outcome, finish_reason)
        except Exception:
            boot.broken()

    def advance(self, t_us: int) -> None:
        """Close every period that ended at or before ``t_us`` (the drain thread's heartbeat on an idle engine).

        A time before the last event changes nothing: the engine is not idle, and closes its periods itself.
        """
        boot = self._boot
        try:
            if t_us >= boot.now:
                boot.event(t_us)
        except Exception:
            boot.broken()

    def close(self, t_us: int, reason: str = "shutdown", *, because: str = "") -> None:
        """Close the pools that are open, and the last period, at ``t_us``.

        Requests that have ended get their records, whatever they still hold; those that have not are lost. With the
        reason ``off`` the hook gives up and the engine goes on: the last batch says so, and ``because`` (shortened to
        one line of 512 characters) to whoever looks after it.
        """
        boot = self._boot
        try:
            if reason == HOOK_OFF:
                boot.off = one_line(because) or "it does not say why"
            t = boot.event(t_us, closing=True)
            for request in list(boot.steps.requests.values()):
                if request.ended_t is not None:
                    request.note_peak(request.held)
                    boot.complete(request)
            if boot.pools:
                boot.close_pools(t, list(boot.pools), reason)
            elif boot.pending() or boot.off:
                boot.cut(t)
        except Exception:
            boot.broken()

    # -- beside the events ---------------------------------------------------------------------------

    def resend_standing(self) -> None:
        """The receiver has missed something: all standing counts go along with the next batch."""
        self._boot.resend = True

    def settle(self, limit: int | None = None, *, rest: Callable[[], None] = no_rest) -> int:
        """Settle and emit waiting periods, oldest first, at most ``limit``; returns how many it were.

        ``rest`` is called after every few rows; a drain thread sleeps half a millisecond in it, or its work
        would keep the engine from the interpreter's lock for up to 5 ms at a time.
        """
        return self._boot.settle(limit, rest)

    def successor(self, t_us: int, boot: Boot) -> Meter:
        """The clock gets a new anchor: closes this boot (``clock``) and carries everything over to the next.

        Owners, holders and requests go on, the :class:`PoolMeter` objects stay valid, and the pools are opened
        and the requests admitted again under the new boot. This meter and the one returned are the same from
        here on.
        """
        account = self._boot
        account.anchor(account.event(t_us, closing=True), boot)
        return Meter(account.source, boot, account.settler.emit, carried=account)
