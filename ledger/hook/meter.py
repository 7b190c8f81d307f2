"""The meter: engine events in, the facts of each period out. The interface is docs/hook.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ledger.core.records import Batch, Boot, Dimensions, Group, Outcome, PreemptionReason, Shard, Source

NOTHING: Mapping[str, int] = {}


class PoolMeter:
    """The account of one pool: made by :meth:`Meter.open`."""

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
        raise NotImplementedError

    def release(
        self, t_us: int, request: str, blocks: Sequence[int], *, cached: Sequence[int] = (), freed: Sequence[int] = ()
    ) -> None:
        """``request`` lets ``blocks`` go; ``cached`` and ``freed`` are those among them that nobody holds any more."""
        raise NotImplementedError

    def evict(self, t_us: int, blocks: Sequence[int]) -> None:
        """Cached blocks lose their content and become free."""
        raise NotImplementedError

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        raise NotImplementedError


class Meter:
    """All accounts of one engine and one boot. ``emit`` gets each batch once its period is over and settled.

    Times are the engine's monotonic microseconds; the boot's anchor turns them into wall time.
    """

    def __init__(self, source: Source, boot: Boot, emit: Callable[[Batch], None]) -> None:
        raise NotImplementedError

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
        raise NotImplementedError

    def request(
        self, t_us: int, request: str, dims: Dimensions, *, prompt_tokens: int, parent: str | None = None,
        arrived_us: int | None = None,
    ) -> None:
        """A core request was received (``arrived_us``: when, if earlier than ``t_us``)."""
        raise NotImplementedError

    def scheduled(self, t_us: int, tokens: Mapping[str, int], total: int) -> None:
        """A step was scheduled: ``tokens`` per request, summing to ``total``. The mapping is read, not kept."""
        raise NotImplementedError

    def stepped(self, t_us: int, accepted: Mapping[str, int] = NOTHING) -> None:
        """The oldest scheduled step ended.

        ``accepted`` names the requests whose accepted output tokens differ from the ordinary: 1 where the
        scheduled tokens reached the end of what was known (prompt and output so far), else 0.
        """
        raise NotImplementedError

    def preempt(self, t_us: int, request: str, reason: PreemptionReason = PreemptionReason.KV_FULL) -> None:
        """A running request goes back to waiting; its blocks are released by :meth:`PoolMeter.release`."""
        raise NotImplementedError

    def finish(self, t_us: int, request: str, outcome: Outcome, finish_reason: str = "") -> None:
        """The request ended. Its record goes out once it has let go of its last block, too."""
        raise NotImplementedError

    def advance(self, t_us: int) -> None:
        """Close every period that ended at or before ``t_us`` (the drain thread's heartbeat on an idle engine)."""
        raise NotImplementedError

    def close(self, t_us: int, reason: str = "shutdown") -> None:
        """Close the pools that are open, and the last period, at ``t_us``."""
        raise NotImplementedError
