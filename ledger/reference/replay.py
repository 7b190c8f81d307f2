"""Replay: requests in, through reference engines with a meter inside, batches of facts out. Virtual time.

Memory is bounded by what is running, waiting and cached, and by the sessions that are open; never by the
length of the trace: requests are pulled as their time comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ledger.core.records import Batch
from ledger.reference.latency import RTX_4090_LLAMA_8B, LatencyModel
from ledger.reference.policy import Policy
from ledger.reference.request import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """What a replay did, over all its engines. Times are wall microseconds."""

    start_us: int
    closed_us: int
    """When the last engine closed."""
    received: int
    """Core requests (children of ``n > 1`` each, warm-up included), which is also the number of their records."""
    finished: int
    aborted: int
    abandoned: int
    refused: int
    preemptions: int
    steps: int
    blocks_acquired: int
    blocks_hit: int
    evictions: int


def replay(
    requests: Iterable[TraceRequest],
    *,
    engines: int = 1,
    blocks: int,
    block_size: int = 16,
    start_us: int,
    emit: Callable[[Batch], None],
    events: Callable[[str], object] | None = None,
    progress: Callable[[int, int], None] | None = None,
    model: str = "reference",
    gpu_model: str = "simulated",
    latency: LatencyModel = RTX_4090_LLAMA_8B,
    policy: Callable[[], Policy] = Policy,
    load_us: int = 20_000_000,
    warmup_requests: int = 3,
    seed: int = 0,
) -> ReplaySummary:
    """Replay ``requests`` (in order of ``arrival_us``) and return the summary.

    Every engine (``engine-0`` …) has a pool ``kv`` of ``blocks`` usable blocks of ``block_size`` tokens, one
    shard with GPU ``sim-engine-0`` …, one boot started at wall time ``start_us``; the pool opens and traffic
    starts ``load_us`` later, warm-up requests (tenant ``system``) first. ``emit`` gets each batch in the order
    of periods, engines interleaved, on this thread. ``events`` gets each line of the audit log (with its
    newline); see :mod:`ledger.reference.events`. ``progress`` gets (requests ended, wall time) now and then:
    at least once a simulated period and never more often than each 64 requests.

    A session stays on one engine (stable hash of tenant and session; requests without a session go by their
    own id). All engines close at the same instant, once nothing is left to do.
    Raises :class:`ledger.errors.UsageError` for arguments that make no engine, or requests out of order.
    """
    raise NotImplementedError
