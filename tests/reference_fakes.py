"""A hook that checks what the reference engine tells it, with sets and counters only."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from ledger.core.records import Dimensions, Outcome, PreemptionReason
from ledger.reference.policy import Policy
from ledger.reference.pool import BlockPool
from ledger.reference.scheduler import CoreRequest, Scheduler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CheckingHook:
    """Both hooks of one pool in one: asserts that no call contradicts those before it."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.tables: dict[str, list[int]] = {}
        self.holders: Counter[int] = Counter()
        self.cached: set[int] = set()
        self.scheduled_tokens: Counter[str] = Counter()
        self.preemptions: Counter[PreemptionReason] = Counter()
        self.outcomes: dict[str, Outcome] = {}
        self.hits: Counter[str] = Counter()
        self.evicted = 0
        self.last_us = 0

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
        self._at(t_us)
        assert (group, len(loaded), covered_tokens) == (0, 0, None)
        table = self.tables.setdefault(request, [])
        assert not hit or not table, "hits come with the first blocks only"
        for block in hit:
            assert self.holders[block] or block in self.cached, "a hit on a block without content"
            self.cached.discard(block)
        for block in new:
            assert not self.holders[block], "a new block has an owner already"
            assert block not in self.cached, "a cached block was taken without being evicted"
        for block in [*hit, *new]:
            assert 1 <= block <= self.blocks
            assert block not in table
            self.holders[block] += 1
            table.append(block)
        self.hits[request] += len(hit)
        self._check()

    def grow(self, t_us: int, group: int, requests: Sequence[str], blocks: Sequence[int]) -> None:
        for request, block in zip(requests, blocks, strict=True):
            self.acquire(t_us, request, group, new=(block,))

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        self._at(t_us)
        assert list(blocks) == self.tables.pop(request)
        for block in blocks:
            self.holders[block] -= 1
        assert {block for block in blocks if not self.holders[block]} == {*cached, *freed}
        assert not set(cached) & set(freed)
        self.cached.update(cached)
        self._check()

    def evict(self, t_us: int, blocks: Sequence[int]) -> None:
        self._at(t_us)
        assert set(blocks) <= self.cached
        self.cached.difference_update(blocks)
        self.evicted += len(blocks)

    def preempt(self, t_us: int, request: str, reason: PreemptionReason = PreemptionReason.KV_FULL) -> None:
        self._at(t_us)
        assert request in self.tables
        self.preemptions[reason] += 1

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = "") -> None:
        self._at(t_us)
        assert request not in self.outcomes, "a request ends once"
        self.outcomes[request] = outcome

    def stepping(self, tokens: Mapping[str, int], total: int) -> None:
        assert sum(tokens.values()) == total
        assert all(count > 0 for count in tokens.values())
        assert set(tokens) <= set(self.tables), "a request without blocks was scheduled"
        self.scheduled_tokens.update(tokens)

    def _at(self, t_us: int) -> None:
        assert t_us >= self.last_us
        self.last_us = t_us

    def _check(self) -> None:
        held = {block for block, count in self.holders.items() if count}
        assert not held & self.cached
        assert len(held) + len(self.cached) <= self.blocks


class Bench:
    """A scheduler on a clock that ticks once a step."""

    def __init__(
        self,
        *,
        blocks: int,
        block_size: int,
        policy: Policy | None = None,
        acceptance_ratio: float = 0.7,
        seed: int = 0,
    ) -> None:
        self.pool = BlockPool(blocks)
        self.hook = CheckingHook(blocks)
        self.scheduler = Scheduler(
            self.pool,
            block_size,
            hook=self.hook,  # type: ignore[arg-type]
            kv=self.hook,
            policy=policy or Policy(),
            random=Random(seed),
            acceptance_ratio=acceptance_ratio,
        )
        self.now = 0
        self.requests: dict[str, CoreRequest] = {}

    def add(
        self, name: str, prompt: int, answer: int, *, priority: int = 0, draft: int = 0, hashes: Sequence[int] = ()
    ) -> CoreRequest:
        request = CoreRequest(
            request=name,
            dims=Dimensions(tenant="t", session=name, priority=priority),
            arrived_us=self.now,
            prompt_tokens=prompt,
            output_tokens=answer,
            source=list(hashes).copy,
            unique=1000 + len(self.requests),
            draft_tokens=draft,
        )
        assert self.scheduler.fits(prompt, answer)
        self.requests[name] = request
        self.scheduler.receive(request)
        return request

    def step(self) -> dict[str, int]:
        total = self.scheduler.schedule(self.now)
        told = dict(self.scheduler.tokens)
        self.hook.stepping(told, total)
        self.now += 1
        _accepted, answered = self.scheduler.complete()
        for request in answered:
            assert request.outputs == request.output_tokens
            self.scheduler.end(self.now, request, Outcome.FINISHED, "length")
        return told

    def run(self, steps: int = 100_000) -> int:
        """Step until everybody is answered; returns the steps taken."""
        for taken in range(steps):
            if not self.scheduler.running and not self.scheduler.waiting_count:
                return taken
            self.step()
        raise AssertionError(f"not done after {steps} steps")
