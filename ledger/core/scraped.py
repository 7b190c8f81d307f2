"""What an engine without a hook said from outside, by period, as a frozen record; and the time that it covers.

Invariants: every quantity is an integer, absent is None; a record lies within one 15-second period and covers time
that was watched at both of its ends, so what nobody watched has no record; counts are parts of what the engine's
counters moved, and over all records of a stretch sum to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedLatency:
    """A histogram of a period: (upper bound in µs, values in that bucket), by bound; ``over`` lie above the last."""

    name: str
    buckets: tuple[tuple[int, int], ...]
    over: int
    total_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedPeriod:
    """One engine over the watched part ``[start_us, end_us)`` of a period.

    ``busy_us`` of it had running requests: a stretch between two scrapes counts as busy if a request ran at its start
    or work was counted in it. Gauges hold from one scrape to the next. ``gap_us``: the counts include what moved in
    this time before ``start_us``, which nobody watched.
    """

    engine: str
    start_us: int
    end_us: int
    busy_us: int
    kind: str = ""
    model: str = ""
    scrapes: int = 0
    """Scrapes in it that were answered."""
    failures: int = 0
    """And those that were not."""
    gap_us: int = 0
    started_us: int | None = None
    running_us: int | None = None
    """Running requests x microseconds."""
    waiting_us: int | None = None
    kv_active_ppm: int | None = None
    """Mean share of the KV memory, in millionths."""
    kv_cached_ppm: int | None = None
    capacity_tokens: int | None = None
    block_size: int | None = None
    prompt_tokens: int | None = None
    computed_tokens: int | None = None
    cached_tokens: int | None = None
    transferred_tokens: int | None = None
    output_tokens: int | None = None
    preemptions: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    finished: tuple[tuple[str, int], ...] | None = None
    """By the engine's own reason, sorted."""
    latencies: tuple[ScrapedLatency, ...] = ()
    signs: tuple[tuple[str, int], ...] = field(default=())
    """What was odd, as ``sign`` or ``sign:figure``, sorted, with how often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What one way of knowing an engine says of a stretch of time, to be held against another way."""

    covered_us: int
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    kv_active_ppm: int | None = None
    running_milli: int | None = None
    """Mean number of running requests, in thousandths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedInputs:
    """What the settlement of an interval of an engine depends on beside its hook's facts.

    ``heard_us``: when it was last watched before the interval, at most 15 minutes ago. ``hook_closed_us``: the last
    clean close of its hook before the interval's end. ``records`` begin within the interval, in order and apart.
    """

    heard_us: int | None = None
    hook_closed_us: int | None = None
    records: tuple[ScrapedPeriod, ...] = ()
