"""What the engine tells, as two interfaces: the meter's, or the tee that writes an audit log beside it.

The methods are those of :class:`ledger.hook.meter.Meter` and ``PoolMeter``, with their meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.core.records import Dimensions, Group, Outcome, PreemptionReason, Shard


class PoolHook(Protocol):
    """The account of one pool."""

    def acquire(
        self,
        t_us: int,
        request: str,
        group: int,
        *,
        hit: Sequence[int] = ...,
        loaded: Sequence[int] = ...,
        new: Sequence[int] = ...,
        covered_tokens: int | None = ...,
    ) -> None: ...

    def grow(self, t_us: int, group: int, requests: Sequence[str], blocks: Sequence[int]) -> None: ...

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = ..., freed: Sequence[int] = ...
    ) -> None: ...

    def evict(self, t_us: int, blocks: Sequence[int]) -> None: ...


class EngineHook(Protocol):
    """The account of one engine and boot."""

    def open(
        self,
        t_us: int,
        pool: str,
        *,
        blocks: int,
        groups: Sequence[Group],
        shards: Sequence[Shard] = ...,
        model: str = ...,
        paying: bool = ...,
        cached: Sequence[int] = ...,
        lookahead_tokens: int = ...,
    ) -> PoolHook: ...

    def request(
        self,
        t_us: int,
        request: str,
        dims: Dimensions,
        *,
        prompt_tokens: int,
        parent: str | None = ...,
        arrived_us: int | None = ...,
    ) -> None: ...

    def scheduled(self, t_us: int, tokens: Mapping[str, int], total: int) -> None: ...

    def stepped(self, t_us: int, accepted: Mapping[str, int] = ...) -> None: ...

    def preempt(self, t_us: int, request: str, reason: PreemptionReason = ...) -> None: ...

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = ...) -> None: ...

    def advance(self, t_us: int) -> None: ...

    def close(self, t_us: int, reason: str = ...) -> None: ...
