"""Continuous batching over a block pool: chunked prefill, preemption by recompute, aborts, speculation.

Every running request that is past its prompt decodes one token in every step, so a pure decode step needs no
look at them: a *calendar* knows in advance at which step each wants its next block (a wheel of ``block_size``
buckets) and at which it ends. What a request has computed is worked out from the step at which it joined. Only
requests in prefill and those that speculate are visited in each step (*irregular*). So a step costs what changes
in it. The mapping ``tokens`` (request: tokens of this step) is kept from step to step for the same reason.

Order within a step as in vLLM: running requests first (here: those that decode before those in prefill), then
admissions, none of these in a step that preempted. Blocks are hashed as soon as they are scheduled to be full.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ledger.core.records import Outcome, PreemptionReason
from ledger.reference.content import extend_unique

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ledger.core.records import Dimensions
    from ledger.reference.hooks import EngineHook, PoolHook
    from ledger.reference.policy import Policy
    from ledger.reference.pool import BlockPool


class CoreRequest:
    """A request as the scheduler sees it; a child of ``n > 1`` is one of its own. Compared by identity."""

    __slots__ = (
        "admitted",
        "arrived_us",
        "cache_salt",
        "computed",
        "dims",
        "draft_tokens",
        "ended",
        "finish_step",
        "hashes",
        "joined",
        "output_tokens",
        "outputs",
        "prompt_tokens",
        "received",
        "registered",
        "request",
        "source",
        "table",
        "unique",
    )

    def __init__(
        self,
        *,
        request: str,
        dims: Dimensions,
        arrived_us: int,
        prompt_tokens: int,
        output_tokens: int,
        source: Callable[[], list[int]],
        unique: int,
        cache_salt: str = "",
        draft_tokens: int = 0,
    ) -> None:
        self.request = request
        self.dims = dims
        self.arrived_us = arrived_us
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.draft_tokens = draft_tokens
        self.cache_salt = cache_salt
        self.unique = unique
        self.source = source
        self.hashes: list[int] | None = None
        """Of its blocks, made by ``source`` when it is first considered: a long queue costs no hashes."""
        self.table: list[int] = []
        self.registered = 0
        """Leading blocks of ``table`` whose hash the pool knows."""
        self.computed = 0
        """Leading positions computed; on the calendar: when it joined."""
        self.outputs = 0
        """Accepted output tokens; on the calendar: when it joined."""
        self.joined = -1
        """First step on the calendar, -1 off it."""
        self.finish_step = -1
        self.received = 0
        self.admitted = -1
        """Order of admission while running, -1 while waiting."""
        self.ended = False

    @property
    def known(self) -> int:
        """Positions whose token is known; off the calendar only."""
        return self.prompt_tokens + self.outputs


class Scheduler:
    """The waiting and the running requests of one engine; tells ``hook`` and ``kv`` whatever it does."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        hook: EngineHook,
        kv: PoolHook,
        policy: Policy,
        random: Random,
        acceptance_ratio: float,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.policy = policy
        self.tokens: dict[str, int] = {}
        self.running: dict[CoreRequest, None] = {}
        """In order of admission."""
        self.waiting_count = 0
        self.prefill_tokens = 0
        self.prefill_pairs = 0
        self.kv_tokens = 0
        self.decoding = 0
        """What the step just scheduled does, for the latency model."""
        self.preemptions = 0
        self.blocks_acquired = 0
        self.blocks_hit = 0
        self.evictions = 0
        self._hook = hook
        self._kv = kv
        self._random = random
        self._acceptance_ratio = acceptance_ratio
        self._waiting: list[tuple[tuple[int, ...], int, CoreRequest]] = []
        self._irregular: dict[CoreRequest, None] = {}
        self._scheduled: list[tuple[CoreRequest, int]] = []
        self._wheel: list[dict[CoreRequest, None]] = [{} for _ in range(block_size)]
        self._finishing: dict[int, list[CoreRequest]] = {}
        self._step = 0
        self._regular = 0
        self._context = 0
        """Computed positions of all requests on the calendar."""
        self._received = 0
        self._admitted = 0
        self._step_preempted = False

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether such a request can ever run to its end here: the last token is never fed back."""
        return prompt_tokens + output_tokens - 1 <= self.pool.blocks * self.block_size

    def receive(self, request: CoreRequest) -> None:
        """Queue a request that :meth:`fits`; the hook has heard of it."""
        request.received = self._received
        self._received += 1
        self._wait(request)

    def schedule(self, now_us: int) -> int:
        """Decide the next step at ``now_us``; returns its tokens in all, 0 if there is nothing to run."""
        self._step_preempted = False
        self.prefill_tokens = self.prefill_pairs = 0
        bucket = self._wheel[self._step % self.block_size]
        if bucket:
            self._grow_regular(now_us, bucket)
        limits = self.policy.limits(now_us, len(self.running), self.waiting_count)
        budget = max(limits.tokens - self._regular, 0)
        self._scheduled.clear()
        if self._irregular:
            budget = self._schedule_irregular(now_us, budget)
        if self._waiting and not self._step_preempted:
            budget = self._admit(now_us, budget, limits.sequences)
        total = self._regular
        # Counted here, since a later victim may have been scheduled a moment before.
        self.decoding = self._regular
        self.kv_tokens = self._context + self._regular
        for request, scheduled in self._scheduled:
            total += scheduled
            computed = request.computed
            if request.outputs and computed == request.known - 1:
                self.decoding += 1
                self.kv_tokens += computed + scheduled
            else:
                self.prefill_tokens += scheduled
                self.prefill_pairs += scheduled * computed + scheduled * scheduled // 2
        return total

    def complete(self) -> tuple[dict[str, int], list[CoreRequest]]:
        """The step is over: accepted tokens where they differ from the ordinary, and who is answered in full."""
        accepted: dict[str, int] = {}
        answered = []
        self._step += 1
        self._context += self._regular
        for request in self._finishing.pop(self._step - 1, ()):
            if request.finish_step == self._step - 1:
                self._leave_calendar(request)
                answered.append(request)
        for request, scheduled in self._scheduled:
            known = request.known
            if request.computed + scheduled < known:
                request.computed += scheduled
                continue
            drafted = request.computed + scheduled - known
            count = self._accept(drafted) if drafted else 1
            if count != 1:
                accepted[request.request] = count
            request.computed = known - 1 + count
            request.outputs += count
            if request.outputs >= request.output_tokens:
                answered.append(request)
            elif not request.draft_tokens:
                self._join_calendar(request)
        return accepted, answered

    def end(self, now_us: int, request: CoreRequest, outcome: Outcome, finish_reason: str) -> None:
        """``request`` is answered or aborted, running or waiting: say so, then let go of its blocks."""
        request.ended = True
        if request.admitted < 0:
            # Its place in the heap is found empty when it comes up.
            self.waiting_count -= 1
            self._hook.finish(now_us, request.request, outcome, finish_reason)
            return
        self._stop(request)
        self._hook.finish(now_us, request.request, outcome, finish_reason)
        self._release(now_us, request)

    def reset(self, now_us: int) -> None:
        """Forget all cached content, that of running requests too: they are preempted (weights were changed)."""
        for request in list(self.running):
            self._preempt(now_us, request, PreemptionReason.RESET)
        if evicted := self.pool.forget_all():
            self.evictions += len(evicted)
            self._kv.evict(now_us, evicted)

    def _wait(self, request: CoreRequest) -> None:
        heappush(self._waiting, (self.policy.admission_key(request), request.received, request))
        self.waiting_count += 1

    def _grow_regular(self, now_us: int, bucket: dict[CoreRequest, None]) -> None:
        """Those who begin a new block in this step get it."""
        if len(bucket) <= self.pool.available:
            self._grow_together(now_us, bucket)
            return
        for request in list(bucket):
            if request.joined < 0:
                continue  # A victim of one before it in this very loop.
            computed = request.computed + self._step - request.joined
            self._register(request, computed)
            self._extend(now_us, request, computed + 1)

    def _grow_together(self, now_us: int, bucket: dict[CoreRequest, None]) -> None:
        """The same where nobody has to give way: their blocks are taken, and told of, in one go."""
        growing = []
        for request in bucket:
            computed = request.computed + self._step - request.joined
            self._register(request, computed)
            if len(request.table) * self.block_size <= computed:
                growing.append(request)
        taken, evicted = self.pool.take_new(len(growing))
        if evicted:
            self.evictions += len(evicted)
            self._kv.evict(now_us, evicted)
        self.blocks_acquired += len(taken)
        for request, block in zip(growing, taken, strict=True):
            request.table.append(block)
        self._kv.grow(now_us, 0, [request.request for request in growing], taken)

    def _schedule_irregular(self, now_us: int, budget: int) -> int:
        for request in list(self._irregular):
            if request not in self._irregular:
                continue  # A victim of one before it.
            wanted = request.known - request.computed
            if wanted == 1 and request.outputs:
                drafts = min(request.draft_tokens, request.output_tokens - request.outputs - 1)
                scheduled = min(1 + drafts, budget)
            else:
                scheduled = min(self.policy.chunk_tokens(request, wanted, budget), wanted, budget)
            if scheduled > 0 and self._extend(now_us, request, request.computed + scheduled):
                self._note(request, scheduled)
                budget -= scheduled
            else:
                self.tokens.pop(request.request, None)
        return budget

    def _admit(self, now_us: int, budget: int, sequences: int) -> int:
        waiting = self._waiting
        size = self.block_size
        while waiting and budget > 0 and len(self.running) < sequences:
            request = waiting[0][2]
            if request.ended:
                heappop(waiting)
                continue
            if request.hashes is None:
                request.hashes = request.source()
            known = request.known
            # The last known token is computed even if cached: its logits are wanted.
            hits = self.pool.lookup(request.hashes, (known - 1) // size)
            computed = len(hits) * size
            wanted = known - computed
            scheduled = min(self.policy.chunk_tokens(request, wanted, budget), wanted, budget)
            if scheduled <= 0:
                break
            new = -(-(computed + scheduled) // size) - len(hits)
            reserved = -(-known // size) - len(hits) if self.policy.must_fit_whole(request) else new
            if reserved + self.pool.idle_among(hits) > self.pool.available:
                break
            heappop(waiting)
            self.waiting_count -= 1
            request.admitted = self._admitted
            self._admitted += 1
            self.running[request] = None
            self._irregular[request] = None
            self.pool.take_hits(hits)
            request.table = list(hits)
            request.computed = computed
            request.registered = len(hits)
            self._take(now_us, request, new, hits)
            self._note(request, scheduled)
            budget -= scheduled
        return budget

    def _note(self, request: CoreRequest, scheduled: int) -> None:
        self._scheduled.append((request, scheduled))
        self.tokens[request.request] = scheduled
        self._register(request, min(request.computed + scheduled, request.known))

    def _extend(self, now_us: int, request: CoreRequest, positions: int) -> bool:
        """Give ``request`` blocks for so many positions, at the cost of others; False if of itself."""
        new = -(-positions // self.block_size) - len(request.table)
        if new <= 0:
            return True
        while self.pool.available < new:
            victim = self.policy.victim(self.running.keys(), request)
            urgent = victim.dims.priority > request.dims.priority
            self._preempt(now_us, victim, PreemptionReason.PRIORITY if urgent else PreemptionReason.KV_FULL)
            if victim is request:
                return False
        self._take(now_us, request, new, [])
        return True

    def _take(self, now_us: int, request: CoreRequest, count: int, hits: list[int]) -> None:
        taken, evicted = self.pool.take_new(count)
        if evicted:
            self.evictions += len(evicted)
            self._kv.evict(now_us, evicted)
        self.blocks_acquired += count + len(hits)
        self.blocks_hit += len(hits)
        self._kv.acquire(now_us, request.request, 0, hit=hits, new=taken)
        request.table += taken

    def _register(self, request: CoreRequest, computed: int) -> None:
        """Blocks that are full once ``computed`` positions are: let them be hit."""
        full = computed // self.block_size
        first = request.registered
        if full <= first:
            return
        hashes = request.hashes
        assert hashes is not None, "it was admitted, so its content was looked up"
        if len(hashes) < full:
            extend_unique(hashes, full, request.unique, request.cache_salt)
        self.pool.register(request.table[first:full], hashes[first:full])
        request.registered = full

    def _accept(self, drafted: int) -> int:
        """Accepted tokens of a step with so many drafts: each is right with one probability, up to the first wrong."""
        count = 1
        while count <= drafted and self._random.random() < self._acceptance_ratio:
            count += 1
        return count

    def _preempt(self, now_us: int, request: CoreRequest, reason: PreemptionReason) -> None:
        self._step_preempted = True
        self.preemptions += 1
        self._stop(request)
        full = request.computed // self.block_size
        if request.registered > full:
            # It had been scheduled in this very step, which will not compute them now.
            self.pool.unregister(request.table[full : request.registered])
            request.registered = full
        request.admitted = -1
        self._hook.preempt(now_us, request.request, reason)
        self._release(now_us, request)
        self._wait(request)

    def _stop(self, request: CoreRequest) -> None:
        """Take ``request`` out of the running ones and out of the step that is being scheduled."""
        if request.joined >= 0:
            self._leave_calendar(request)
        self.running.pop(request)
        self._irregular.pop(request, None)
        self.tokens.pop(request.request, None)
        if self._scheduled:
            self._scheduled = [entry for entry in self._scheduled if entry[0] is not request]

    def _release(self, now_us: int, request: CoreRequest) -> None:
        self._register(request, min(request.computed, request.known))
        table = request.table
        cached, freed = self.pool.release(table)
        request.table = []
        request.registered = 0
        request.computed = 0
        self._kv.release(now_us, request.request, table, cached=cached, freed=freed)

    def _join_calendar(self, request: CoreRequest) -> None:
        del self._irregular[request]
        self.tokens[request.request] = 1
        request.joined = self._step
        request.finish_step = self._step + request.output_tokens - request.outputs - 1
        self._wheel[(self._step - request.computed) % self.block_size][request] = None
        self._finishing.setdefault(request.finish_step, []).append(request)
        self._regular += 1
        self._context += request.computed

    def _leave_calendar(self, request: CoreRequest) -> None:
        """Off the calendar before the step numbered ``_step``: its counts are its own again."""
        elapsed = self._step - request.joined
        del self._wheel[(request.joined - request.computed) % self.block_size][request]
        request.computed += elapsed
        request.outputs += elapsed
        request.joined = -1
        request.finish_step = -1
        self._regular -= 1
        self._context -= request.computed
        self._irregular[request] = None
