"""The audit log: everything that is metered, as JSON lines, beside the meter and not from it.

:class:`EventLog` stands between the engine and its meter and passes every call on unchanged. What it counts
itself (the tokens of a ``finish`` by their source) it counts from the calls alone, one request and one step at a
time, so that the log is a second witness. The keys are listed in docs/reference-engine.md and are stable.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from ledger.core.records import PreemptionReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ledger.core.records import Dimensions, Group, Outcome, Shard
    from ledger.reference.hooks import EngineHook, PoolHook

NOTHING: Mapping[str, int] = {}

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class _Tally:
    """The positions of one request: how far it has come, and where its prompt came from."""

    __slots__ = (
        "cached_others",
        "cached_own",
        "computed",
        "drafted",
        "frontier",
        "highest",
        "outputs",
        "prompt_tokens",
        "recomputed",
        "rejected",
        "session",
        "transferred",
    )

    def __init__(self, prompt_tokens: int, session: tuple[str, str]) -> None:
        self.prompt_tokens = prompt_tokens
        self.session = session
        self.frontier = self.highest = self.outputs = 0
        self.computed = self.cached_own = self.cached_others = self.transferred = 0
        self.recomputed = self.drafted = self.rejected = 0

    def cover(self, positions: int) -> int:
        """The next ``positions`` are there already; returns how many prompt positions that covers at last."""
        end = min(self.frontier + positions, self.prompt_tokens + self.outputs)
        fresh = max(0, min(end, self.prompt_tokens) - max(self.frontier, self.highest))
        self.frontier = end
        self.highest = max(self.highest, end)
        return fresh

    def schedule(self, scheduled: int) -> None:
        end = self.frontier + scheduled
        self.recomputed += max(0, min(end, self.highest) - self.frontier)
        self.computed += max(0, min(end, self.prompt_tokens) - max(self.frontier, self.highest))
        self.frontier = end
        self.highest = max(self.highest, end)

    def accept(self, accepted: int | None) -> int:
        """The scheduled positions are computed; returns the accepted tokens (None: the ordinary number)."""
        drafted = max(0, self.frontier - self.prompt_tokens - self.outputs)
        if accepted is None:
            accepted = 1 if self.frontier >= self.prompt_tokens + self.outputs else 0
        rejected = drafted - max(accepted - 1, 0)
        self.drafted += drafted
        self.rejected += rejected
        self.frontier -= rejected
        self.highest -= rejected
        self.outputs += accepted
        return accepted

    def tokens(self) -> dict[str, int]:
        told = self.computed + self.cached_own + self.cached_others + self.transferred
        return {
            "computed": self.computed,
            "cached_own": self.cached_own,
            "cached_others": self.cached_others,
            "transferred": self.transferred,
            "unprocessed": self.prompt_tokens - told,
            "recomputed": self.recomputed,
        }


class EventLog:
    """An :class:`~ledger.reference.hooks.EngineHook` that writes each event as a line and passes it on.

    ``write`` gets each line with its newline. Times in the log are wall microseconds: ``anchor_us`` plus the
    engine's own.
    """

    def __init__(self, hook: EngineHook, write: Callable[[str], object], *, engine: str, anchor_us: int) -> None:
        self._hook = hook
        self._write = write
        self._engine = engine
        self._anchor_us = anchor_us
        self._pool = ""
        self._block_size = 0
        self._tallies: dict[str, _Tally] = {}
        self._writers: dict[int, tuple[str, str]] = {}
        """Which session computed the content of a block of group 0 of the paying pool."""
        self._started: deque[tuple[int, dict[str, int]]] = deque()

    def line(self, t_us: int, pool: str, ev: str, **keys: object) -> None:
        head = {"t_us": self._anchor_us + t_us, "engine": self._engine, "pool": pool, "ev": ev}
        self._write(_encode(head | keys) + "\n")

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
    ) -> PoolHook:
        inner = self._hook.open(
            t_us,
            pool,
            blocks=blocks,
            groups=groups,
            shards=shards,
            model=model,
            paying=paying,
            cached=cached,
            lookahead_tokens=lookahead_tokens,
        )
        if paying:
            self._pool = pool
            self._block_size = groups[0].block_size
            self._writers.clear()
        self.line(
            t_us,
            pool,
            "open",
            blocks=blocks,
            block_size=[group.block_size for group in groups],
            kinds=[str(group.kind) for group in groups],
            shards=[{"dp": shard.dp, "pp": shard.pp, "tp": shard.tp, "gpu_uuid": shard.gpu_uuid} for shard in shards],
            model=model,
            paying=paying,
            cached=list(cached),
            lookahead_tokens=lookahead_tokens,
        )
        return _PoolLog(self, inner, pool, paying=paying)

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
        self._hook.request(t_us, request, dims, prompt_tokens=prompt_tokens, parent=parent, arrived_us=arrived_us)
        self._tallies[request] = _Tally(prompt_tokens, (dims.tenant, dims.session))
        self.line(
            t_us,
            self._pool,
            "request",
            request=request,
            parent=parent,
            tenant=dims.tenant,
            session=dims.session,
            scenario=dims.scenario,
            priority=dims.priority,
            model=dims.model,
            adapter=dims.adapter,
            prompt_tokens=prompt_tokens,
            arrived_us=self._anchor_us + (t_us if arrived_us is None else arrived_us),
        )

    def scheduled(self, t_us: int, tokens: Mapping[str, int], total: int) -> None:
        self._hook.scheduled(t_us, tokens, total)
        for request, scheduled in tokens.items():
            self._tallies[request].schedule(scheduled)
        self._started.append((t_us, dict(tokens)))

    def stepped(self, t_us: int, accepted: Mapping[str, int] = NOTHING) -> None:
        self._hook.stepped(t_us, accepted)
        start_us, scheduled = self._started.popleft()
        counts = {}
        for request in scheduled:
            tally = self._tallies.get(request)
            if tally is not None:
                counts[request] = tally.accept(accepted.get(request))
        self.line(
            t_us,
            self._pool,
            "step",
            start_us=self._anchor_us + start_us,
            duration_us=t_us - start_us,
            scheduled=scheduled,
            accepted=counts,
        )

    def preempt(self, t_us: int, request: str, reason: PreemptionReason = PreemptionReason.KV_FULL) -> None:
        self._hook.preempt(t_us, request, reason)
        self._tallies[request].frontier = 0
        self.line(t_us, self._pool, "preempt", request=request, reason=str(reason))

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = "") -> None:
        self._hook.finish(t_us, request, outcome, finish_reason)
        tally = self._tallies.pop(request)
        self.line(
            t_us,
            self._pool,
            "finish",
            request=request,
            reason=str(outcome),
            finish_reason=finish_reason,
            tokens=tally.tokens(),
            output_tokens=tally.outputs,
            drafted=tally.drafted,
            rejected=tally.rejected,
        )

    def advance(self, t_us: int) -> None:
        self._hook.advance(t_us)

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        self._hook.close(t_us, reason)
        self.line(t_us, self._pool, "close", reason=reason)

    def acquired(self, request: str, group: int, hit: Sequence[int], loaded: Sequence[int], new: Sequence[int]) -> None:
        """Blocks of the paying pool: who computed them, and what of the prompt they cover."""
        if group:
            return
        tally = self._tallies[request]
        writers = self._writers
        for block in hit:
            fresh = tally.cover(self._block_size)
            if writers.get(block) == tally.session:
                tally.cached_own += fresh
            else:
                tally.cached_others += fresh
        for block in loaded:
            writers.pop(block, None)
            tally.transferred += tally.cover(self._block_size)
        for block in new:
            writers[block] = tally.session


class _PoolLog:
    """The :class:`~ledger.reference.hooks.PoolHook` of one pool."""

    def __init__(self, log: EventLog, inner: PoolHook, pool: str, *, paying: bool) -> None:
        self._log = log
        self._inner = inner
        self._pool = pool
        self._paying = paying

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
        self._inner.acquire(t_us, request, group, hit=hit, loaded=loaded, new=new, covered_tokens=covered_tokens)
        self._acquired(t_us, request, group, hit=hit, loaded=loaded, new=new)

    def grow(self, t_us: int, group: int, requests: Sequence[str], blocks: Sequence[int]) -> None:
        """In the log each request's block is an ``acquire`` of its own."""
        self._inner.grow(t_us, group, requests, blocks)
        for request, block in zip(requests, blocks, strict=True):
            self._acquired(t_us, request, group, new=(block,))

    def _acquired(
        self,
        t_us: int,
        request: str,
        group: int,
        *,
        hit: Sequence[int] = (),
        loaded: Sequence[int] = (),
        new: Sequence[int] = (),
    ) -> None:
        if self._paying:
            self._log.acquired(request, group, hit, loaded, new)
        self._log.line(
            t_us,
            self._pool,
            "acquire",
            request=request,
            group=group,
            hit=list(hit),
            loaded=list(loaded),
            new=list(new),
        )

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        self._inner.release(t_us, request, blocks, cached=cached, freed=freed)
        self._log.line(
            t_us,
            self._pool,
            "release",
            request=request,
            blocks=list(blocks),
            cached=list(cached),
            freed=list(freed),
        )

    def evict(self, t_us: int, blocks: Sequence[int]) -> None:
        self._inner.evict(t_us, blocks)
        self._log.line(t_us, self._pool, "evict", blocks=list(blocks))
