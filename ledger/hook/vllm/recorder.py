"""What vLLM's scheduler does, told to the meter: requests, blocks, steps, ends.

Invariants: within one call of ``schedule`` or ``update_from_output`` no time passes (a step lasts from the entry into
the one to the return of the other); blocks that are taken are told before the step that fills them, whoever hits them
after whoever computed them, and a step's end before the end of the requests that it finished.
"""

# ruff: noqa: BLE001
# Whatever goes wrong in here must not reach the engine: each call catches everything, and counts it.

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ledger.core.records import HOOK_OFF, Dimensions, Outcome, PreemptionReason, travelling
from ledger.hook.slices import no_rest
from ledger.hook.vllm.callers import caller_of
from ledger.hook.vllm.guard import Guarded, guarded
from ledger.hook.vllm.pool import BlockWatch, Hits
from ledger.hook.vllm.timing import CoreTimes
from ledger.limits import PRIORITY_ABS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ledger.hook.meter import Meter
    from ledger.hook.pool import PoolMeter
    from ledger.hook.vllm.timing import Ranks
    from ledger.outbox.drain import Outbox

_OUTCOMES: Final = {
    "FINISHED_STOPPED": (Outcome.FINISHED, "stop"),
    "FINISHED_LENGTH_CAPPED": (Outcome.FINISHED, "length"),
    "FINISHED_REPETITION": (Outcome.FINISHED, "repetition"),
    "FINISHED_ABORTED": (Outcome.ABORTED, "abort"),
    "FINISHED_IGNORED": (Outcome.REFUSED, "length"),
    "FINISHED_ERROR": (Outcome.FAILED, "error"),
}
"""vLLM's ``RequestStatus`` by name: the numbers move between versions."""


CLOSE_S: Final = 2.0
"""For the last batches when the engine ends, which waits for it; what is not sent by then waits in the spool."""


class Recorder(Guarded):
    """One engine's events, on the engine's thread. ``order`` maps vLLM's groups to the meter's."""

    def __init__(
        self,
        scheduler: Any,
        meter: Meter,
        open_pool: Callable[[Meter, int], PoolMeter],
        *,
        order: Sequence[int],
        model: str,
        handover_key: bytes,
        outbox: Outbox | None = None,
        ranks: Ranks | None = None,
        now_us: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__()
        self.meter = meter
        self._lock = meter.lock
        """The same for a meter and its successors."""
        self.config = scheduler.vllm_config
        self._open_pool = open_pool
        self._asleep = self._closed = False
        self._now_us = now_us
        self._wall_us = wall_us
        self.pool = open_pool(meter, now_us())
        self.watch = BlockWatch(scheduler.kv_cache_manager, self)
        self._scheduler = scheduler
        self._order = tuple(order)
        """The meter's number of each of vLLM's groups."""
        self._single = len(self._order) == 1
        self._drafts = scheduler.num_spec_tokens > 0
        self._model = model
        self._key = handover_key
        self._outbox = outbox
        self._ranks = ranks
        self._look = ranks.look if ranks is not None else None
        self._core = CoreTimes()
        self._stamp = self._core.stamp
        self._updating_us = 0
        self._at_us: int | None = None
        """The present instant, within ``schedule``."""
        self._late: list[Callable[[int], None]] | None = None
        """What is told after the end of the step, within ``update_from_output``."""
        self._stale: dict[str, int] = {}
        """Preempted requests whose output in flight vLLM drops: how many tokens of it are still to come."""
        self._pinned: dict[int, str] = {}
        """Blocks that their last holder let go and the engine (a KV connector) still refers to: who stays charged."""
        self._pins = scheduler.connector is not None

    def _t(self) -> int:
        return self._now_us() if self._at_us is None else self._at_us

    def fault(self, where: str) -> None:
        """Counted for the books, too: reason ``hook_error``."""
        self.meter.faults["hook_error"] += 1
        super().fault(where)

    def let_go(self) -> None:
        """Take the wrappers away and close the books: from here on the engine is vacant, not unobserved."""
        self.watch.unwatch()
        with self.meter.lock:
            self.meter.close(
                self._now_us(), HOOK_OFF, because=f"faults of its own in {', '.join(sorted(self.faults))}; see its log"
            )

    # -- requests --------------------------------------------------------------------------------------

    @guarded
    def received(self, request: Any) -> None:
        """``Scheduler.add_request``."""
        caller = caller_of(request, self._key)
        dims = Dimensions(
            tenant=caller.tenant,
            session=caller.session,
            model=self._model,
            adapter=travelling(request.lora_request.lora_name) if request.lora_request else "",
            scenario=caller.scenario,
            # A body may ask for any integer, and one that no receiver takes would cost a whole batch.
            priority=max(-PRIORITY_ABS_MAX, min(caller.priority, PRIORITY_ABS_MAX)),
        )
        t = self._t()
        waited_us = max(0, self._wall_us() - int(request.arrival_time * 1e6))
        with self.meter.lock:
            self.meter.request(
                t,
                request.request_id,
                dims,
                prompt_tokens=request.num_prompt_tokens,
                parent=parent_of(request.request_id),
                arrived_us=max(0, t - waited_us),
            )

    @guarded
    def preempted(self, request: Any, *, drops_output: bool, resetting: bool) -> None:
        """``Scheduler._preempt_request``, before it."""
        reason = PreemptionReason.KV_FULL
        if resetting:
            reason = PreemptionReason.RESET
        elif any(other.priority < request.priority for other in self._scheduler.running):
            # vLLM chose it over an earlier or later one because it counts for less.
            reason = PreemptionReason.PRIORITY
        if drops_output and request.num_in_flight_tokens:
            self._stale[request.request_id] = request.num_in_flight_tokens
        with self.meter.lock:
            self._catch_up(request.request_id)
            self.meter.preempt(self._t(), request.request_id, reason, drops_output=drops_output)

    @guarded
    def ended(self, request: Any) -> None:
        """``Scheduler._free_request``, before it: the status says how it ended."""
        name = request.request_id
        outcome, reason = _OUTCOMES[request.status.name]
        self._stale.pop(name, None)
        self._say(lambda t: self.meter.finish(t, name, outcome, reason))

    # -- steps -----------------------------------------------------------------------------------------

    # Every step goes through these four, with nothing in the nearest cache: they are guarded where they stand.

    def scheduling(self) -> None:
        """``Scheduler.schedule`` begins."""
        if self.off:
            return
        try:
            self._at_us = self._now_us()
        except Exception:
            self.fault("scheduling")

    def scheduled(self, output: Any) -> None:
        """``Scheduler.schedule`` returned: who took which blocks, and who computes how many tokens."""
        if self.off:
            return
        try:
            now_us = self._now_us()
            # It is None where the beginning of the step has failed.
            t = now_us if self._at_us is None else self._at_us
            self._stamp((t, now_us, None))
            with self._lock:
                self._taken(t, output)
                self.meter.scheduled(t, output.num_scheduled_tokens, output.total_num_scheduled_tokens)
        except Exception:
            self.fault("scheduled")
        finally:
            self._at_us = None
            self.watch.admitted.clear()

    def updating(self) -> None:
        """``Scheduler.update_from_output`` begins: what it ends is told after the step."""
        if self.off:
            return
        try:
            self._late = []
            self._updating_us = self._now_us()
        except Exception:
            self.fault("updating")

    def updated(self, scheduled: Mapping[str, int], output: Any) -> None:
        """``Scheduler.update_from_output`` returned; it has cut the tokens after a stop from ``output``."""
        if self.off:
            return
        late, self._late = self._late, None
        try:
            self._updated(self._now_us(), scheduled, output, late)
        except Exception:
            self.fault("updated")

    def _updated(
        self, t: int, scheduled: Mapping[str, int], output: Any, late: Sequence[Callable[[int], None]] | None
    ) -> None:
        accepted: Mapping[str, int] = {}
        try:
            accepted = self._accepted(scheduled, output)
            scheduler = self._scheduler
            self._stamp((self._updating_us, t, bool(scheduler.running) or scheduler.has_unfinished_requests()))
            if self._look is not None:
                # With the first step every rank of this machine has begun to write; its file may be gone with it.
                look, self._look = self._look, None
                look()
        finally:
            # What was let go has been let go, whatever becomes of the rest.
            with self._lock:
                self.meter.stepped(t, accepted)
                for say in late or ():
                    say(t)

    @guarded
    def slept(self, *, asleep: bool) -> None:
        """The KV cache is gone, or back and empty: nobody holds any of it, since vLLM has reset it before."""
        if asleep == self._asleep:
            return
        self._asleep = asleep
        with self.meter.lock:
            if asleep:
                self.pool.close(self._now_us(), "sleep")
            else:
                self.pool = self._open_pool(self.meter, self._now_us())

    @guarded
    def closed(self, reason: str) -> None:
        """The engine shuts down. Called again, it does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._core.drain(self.meter, self._now_us())
            if self._ranks is not None:
                self._ranks.drain_last(self.meter, self._now_us, self._core.steps)
        finally:
            with self.meter.lock:
                self.meter.close(self._now_us(), reason)
        if reason == "shutdown" and self._outbox is not None:
            self._outbox.close(CLOSE_S)

    def drain(self, t_us: int, rest: Callable[[], None] = no_rest) -> None:
        """Tell the meter how long the parts of the steps took that have ended; on any thread."""
        self._core.drain(self.meter, t_us, rest)
        if self._ranks is not None:
            self._ranks.drain(self.meter, t_us, rest)

    def _accepted(self, scheduled: Mapping[str, int], output: Any) -> dict[str, int]:
        """Requests that gave other than one token."""
        sampled = output.sampled_token_ids
        if not sampled:
            # Nothing was sampled: a step without tokens, or a pooling model's.
            return dict.fromkeys(scheduled, 0)
        accepted: dict[str, int] = {}
        # Without drafts a request gives one token or none, and to look for an empty list takes a fourth of the time.
        if self._drafts or [] in sampled:
            counts = list(map(len, sampled))
            accepted = {name: counts[place] for name, place in output.req_id_to_index.items() if counts[place] != 1}
        if self._stale:
            for name in [name for name in self._stale if name in scheduled]:
                accepted[name] = 0
                self._stale[name] -= scheduled[name]
                if self._stale[name] <= 0:
                    del self._stale[name]
        return accepted

    # -- blocks ----------------------------------------------------------------------------------------

    def _taken(self, t: int, output: Any) -> None:
        first = self._taken_while_running(t, output.scheduled_cached_reqs)
        if output.scheduled_new_reqs:
            first = [data.req_id for data in output.scheduled_new_reqs] + first
        admitted = self.watch.admitted
        # A hit may be on what another one got in this very step, so those with hits come last, as they were admitted.
        for name in first:
            if name not in admitted:
                for group, number in enumerate(self._order):
                    if ids := self.watch.table(name, group):
                        self.pool.acquire(t, name, number, new=ids)
        for name, hits in admitted.items():
            self._admit(t, name, hits)

    def _taken_while_running(self, t: int, cached: Any) -> list[str]:
        """Tell the blocks of requests that were running; those that go on after a preemption are returned."""
        again: list[str] = []
        names: list[str] = []
        blocks: list[int] = []
        resumed, single = cached.resumed_req_ids, self._single
        for place, new in enumerate(cached.new_block_ids):
            # Most have none, and their names need no touching.
            if not new:
                continue
            name = cached.req_ids[place]
            if resumed and name in resumed:
                again.append(name)
            elif single and len(new[0]) == 1:
                names.append(name)
                blocks.append(new[0][0])
            else:
                for group, ids in enumerate(new):
                    if ids:
                        self.pool.acquire(t, name, self._order[group], new=ids)
        if names:
            self.pool.grow(t, 0, names, blocks)
        return again

    def _admit(self, t: int, name: str, hits: Hits) -> None:
        """The first blocks of a request that found content: hits, what is loaded from outside, new ones."""
        covered = hits.local_tokens + hits.loaded_tokens
        # Group 0 of the meter first: it says how far the prompt is covered, and the others lie where that ends.
        for group in sorted(range(len(self._order)), key=self._order.__getitem__):
            number = self._order[group]
            table = self.watch.table(name, group)
            hit = _common(hits.blocks[group], table)
            size = self.pool.block_size(number)
            # A hit that ends within a block gets a copy of it to write on: to the meter, content from outside.
            loaded = -(-covered // size) - hits.local_tokens // size
            self.pool.acquire(
                t,
                name,
                number,
                hit=table[:hit],
                loaded=table[hit : hit + loaded],
                new=table[hit + loaded :],
                covered_tokens=covered - hits.skipped[group] * size if not number else None,
                skipped_tokens=hits.skipped[group] * size if not number and hit else 0,
            )

    def _catch_up(self, name: str) -> None:
        """Within ``schedule``: tell what a request took in this step before it lets go of it in the same."""
        if self._at_us is None:
            return
        for group, number in enumerate(self._order):
            table = self.watch.table(name, group)
            new = len(table)
            while new and not self.pool.is_held(table[new - 1]):
                new -= 1
            if new < len(table):
                self.pool.acquire(self._at_us, name, number, new=table[new:])

    def releasing(self, request: str) -> None:
        """See :class:`~ledger.hook.vllm.pool.Listener`."""
        if not self.off and self._at_us is not None:
            with self.meter.lock:
                self._catch_up(request)

    def released(self, request: str | None, blocks: list[int], cached: list[int], freed: list[int]) -> None:
        """See :class:`~ledger.hook.vllm.pool.Listener`."""
        if self.off:
            return
        if request is None:
            self._unpin(cached, freed)
            return
        if self._pins and len(blocks) > len(cached) + len(freed):
            gone = {*cached, *freed}
            pinned = [block for block in blocks if block not in gone and not self.pool.is_shared(block)]
            for block in pinned:
                self._pinned[block] = request
            if pinned:
                blocks = [block for block in blocks if self._pinned.get(block) != request]
        self._say(lambda t: self.pool.release(t, request, blocks, cached=cached, freed=freed))

    def _unpin(self, cached: list[int], freed: list[int]) -> None:
        """The engine's own last references: whoever held these blocks last is charged no more."""
        for kept, gone in ((cached, False), (freed, True)):
            for block in kept:
                holder = self._pinned.pop(block, None)
                if holder is None:
                    continue
                self._say(
                    lambda t, holder=holder, block=block, gone=gone: self.pool.release(  # type: ignore[misc]
                        t, holder, [block], cached=() if gone else (block,), freed=(block,) if gone else ()
                    )
                )

    def dropped(self, blocks: list[int]) -> None:
        """See :class:`~ledger.hook.vllm.pool.Listener`."""
        if not self.off:
            self._say(lambda t: self.pool.evict(t, blocks))

    def _say(self, say: Callable[[int], None]) -> None:
        """Tell it now, or after the end of the step that is just being worked up."""
        if self._late is not None:
            self._late.append(say)
            return
        with self.meter.lock:
            say(self._t())


def _common(found: list[int], table: list[int]) -> int:
    """How many of the blocks that were found the table begins with.

    The first ones may lie before the attention's window, and the last one may have been replaced by a copy to write to.
    """
    if not table or table[0] not in found:
        return 0
    start = found.index(table[0])
    count = 0
    while count < len(table) and start + count < len(found) and table[count] == found[start + count]:
        count += 1
    return count


def parent_of(request: str) -> str | None:
    """The request that ``request`` is a sample of: vLLM calls sample *i* of ``n > 1`` ``i_PARENT``."""
    number, separator, parent = request.partition("_")
    return parent if separator and parent and number.isascii() and number.isdigit() else None
