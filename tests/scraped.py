"""Readings and records of scraped engines for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.collectors.readings import Figure, Latency, Pool, Reading
from ledger.core.records import PERIOD_US
from ledger.core.scraped import ScrapedLatency, ScrapedPeriod

if TYPE_CHECKING:
    from collections.abc import Iterator

T0 = 1_793_664_000_000_000  # 2026-11-03T00:00:00Z
S = 1_000_000


def reading(
    *,
    running: int | None = 1,
    output: int | None = None,
    kv_ppm: int | None = None,
    started_us: int | None = None,
    end_to_end_us: int | None = None,
    counters: dict[Figure, int] | None = None,
    origins: dict[Figure, str] | None = None,
) -> Reading:
    moved = dict(counters or {}) | ({} if output is None else {Figure.OUTPUT: output})
    latencies = {}
    if end_to_end_us is not None:
        latencies[Figure.END_TO_END] = Latency(buckets=((10 * S, 1),), count=1, total_us=end_to_end_us)
    return Reading(
        kind="vllm",
        models=("m",),
        running=running,
        started_us=started_us,
        pools=() if kv_ppm is None else (Pool(active_ppm=kv_ppm, capacity=1600, block_size=16),),
        counters=moved,
        latencies=latencies,
        origins=origins or {},
    )


def record(start_us: int, *, engine: str = "e", busy_us: int = PERIOD_US, length_us: int = PERIOD_US, **more: object):
    return ScrapedPeriod(
        engine=engine, start_us=start_us, end_us=start_us + length_us, busy_us=min(busy_us, length_us), **more
    )


def periods(start_us: int, end_us: int) -> Iterator[int]:
    yield from range(start_us - start_us % PERIOD_US, end_us, PERIOD_US)


FULL = ScrapedPeriod(
    engine="e", start_us=T0 + S, end_us=T0 + 15 * S, busy_us=3 * S, kind="vllm", model="m", scrapes=1, failures=2,
    gap_us=60 * S, started_us=T0 - S, running_us=7 * S, waiting_us=0, kv_active_ppm=250_000, kv_cached_ppm=300_000,
    capacity_tokens=1600, block_size=16, prompt_tokens=10, computed_tokens=7, cached_tokens=3, transferred_tokens=0,
    output_tokens=5, preemptions=1, prefix_queries=10, prefix_hits=3, finished=(("length", 1), ("stop", 4)),
    latencies=(ScrapedLatency(name="end_to_end", buckets=((100_000, 3), (500_000, 1)), over=1, total_us=999),),
    signs=(("gap", 1), ("renamed:kv_active", 1)),
)  # fmt: skip
"""A record with every figure."""
