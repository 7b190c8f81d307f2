"""What scraping tells, as metrics: how it goes, and the figures of engines that no hook speaks for.

Invariant: a figure that hooks give as well is shown from one of both only, so nothing counts twice.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from ledger import metrics as m
from ledger import metrics_scraped as ms
from ledger.collectors.readings import Figure
from ledger.collectors.series import Sign
from ledger.core.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.collectors.readings import Pool
    from ledger.collectors.scraper import Aim, Answer, Failure
    from ledger.collectors.series import Moved
    from ledger.metrics import Metrics

POOL: Final = "scraped"
"""The pool's name where a scraped engine's KV memory is shown: the engine tells none."""

_OUTCOMES: Final = {
    "abort": Outcome.ABORTED,
    "error": Outcome.FAILED,
    "failed": Outcome.FAILED,
    "failure": Outcome.FAILED,
}
"""What an engine's own reason amounts to; any other is an end as it should be."""

_LATENCIES: Final = {
    Figure.QUEUE: m.QUEUE_TIME,
    Figure.FIRST_TOKEN: m.FIRST_TOKEN_TIME,
    Figure.INTER_TOKEN: m.INTER_TOKEN_TIME,
    Figure.END_TO_END: m.END_TO_END_TIME,
}

_OF_ENGINE: Final = (
    ms.REQUESTS_NOW, ms.SCRAPED, ms.FAILING, ms.DEAD, ms.UNKNOWN, ms.DIFFERENCE, m.KV_UTILIZATION, m.KV_BLOCKS,
)  # fmt: skip
"""Gauges whose first label is the engine."""


class ScrapedMetrics:
    """Feeds the metrics. Thread-safe as they are; ``hooked`` says whether a hook speaks for an engine."""

    def __init__(self, metrics: Metrics, hooked: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._hooked = hooked

    def began(self, late_s: float) -> None:
        """A scrape began, so much later than it was due."""
        self._metrics.observe(ms.SCRAPE_LATE, (), late_s)

    def skipped(self, aim: Aim) -> None:
        """A scrape was due and not begun."""
        self._metrics.add(ms.SCRAPES, (aim.engine, "skipped"))

    def failed(self, failure: Failure) -> None:
        """A scrape was not answered."""
        engine = failure.aim.engine
        self._metrics.add(ms.SCRAPES, (engine, failure.why.value))
        self._metrics.observe(ms.SCRAPE_TIME, ("failed",), failure.took_s)
        self._metrics.put(ms.FAILING, (engine,), failure.in_a_row)

    def answered(self, answer: Answer) -> None:
        """A scrape was answered: show how it went, and what the engine said if nobody says it better."""
        metrics, engine = self._metrics, answer.aim.engine
        metrics.add(ms.SCRAPES, (engine, "answered"))
        metrics.observe(ms.SCRAPE_TIME, ("answered",), answer.took_s)
        metrics.put(ms.FAILING, (engine,), 0)
        metrics.put(ms.SCRAPED, (engine,), answer.at_us / 1e6)
        metrics.put(ms.UNKNOWN, (engine,), len(answer.unknown))
        dead = set()
        for noticed in answer.noticed:
            metrics.add(ms.SIGNS, (engine, noticed.sign.value))
            if noticed.sign is Sign.DEAD_GAUGE:
                dead.add(noticed.figure)
        for figure in (Figure.RUNNING, Figure.KV_ACTIVE):
            if answer.moved is not None:
                metrics.put(ms.DEAD, (engine, figure.value), figure.value in dead)
        if answer.reading.gpus:
            return
        running = None if Figure.RUNNING.value in dead else answer.reading.running
        for state, value in (("running", running), ("waiting", answer.reading.waiting)):
            if value is not None:
                metrics.put(ms.REQUESTS_NOW, (engine, state), value)
        if running is None:
            metrics.drop(ms.REQUESTS_NOW, (engine, "running"))
        if not self._hooked(engine):
            self._show(engine, answer, dead)

    def forget(self, engine: str) -> None:
        """Drop the gauges of an engine that is scraped no more; those that its hook feeds stay."""
        for metric in _OF_ENGINE:
            if metric not in (m.KV_UTILIZATION, m.KV_BLOCKS) or not self._hooked(engine):
                self._metrics.forget(metric, engine)

    def _show(self, engine: str, answer: Answer, dead: set[str]) -> None:
        for pool in answer.reading.pools:
            self._show_pool(engine, pool, dead=Figure.KV_ACTIVE.value in dead)
        if answer.moved is not None:
            self._show_work(engine, answer.moved)

    def _show_pool(self, engine: str, pool: Pool, *, dead: bool) -> None:
        where = (engine, POOL, f"dp{pool.rank}" if pool.rank else "")
        if pool.active_ppm is None or dead:
            self._metrics.drop(m.KV_UTILIZATION, where)
            return
        self._metrics.put(m.KV_UTILIZATION, where, pool.active_ppm / 1e6)
        if not pool.capacity or not pool.block_size:
            return
        blocks = pool.capacity // pool.block_size
        shares = {"active": pool.active_ppm}
        if pool.cached_ppm is not None:
            shares |= {"cached": pool.cached_ppm, "free": max(0, 1_000_000 - pool.active_ppm - pool.cached_ppm)}
        for state, share in shares.items():
            self._metrics.put(m.KV_BLOCKS, (*where, state), round(blocks * share / 1e6))

    def _show_work(self, engine: str, moved: Moved) -> None:
        metrics, counters = self._metrics, moved.counters
        for source, tokens in _tokens(counters).items():
            if tokens:
                metrics.add(m.ENGINE_TOKENS, (engine, source), tokens)
        if times := counters.get(Figure.PREEMPTIONS):
            metrics.add(m.ENGINE_PREEMPTIONS, (engine, "unknown"), times)
        for reason, number in (moved.finished or {}).items():
            if number:
                metrics.add(m.REQUESTS, ("", _OUTCOMES.get(reason, Outcome.FINISHED).value), number)
        for figure, (buckets, total_us) in moved.latencies.items():
            pairs = [(inf if bound is None else bound / 1e6, number) for bound, number in buckets if number]
            if pairs:
                metrics.merge(_LATENCIES[figure], ("", ""), pairs, (total_us or 0) / 1e6)


def _tokens(counters: Mapping[Figure, int]) -> dict[str, int]:
    """Tokens by source, each once: what is told apart is not in a sum as well."""
    told = {"output": counters.get(Figure.OUTPUT, 0), "transferred": counters.get(Figure.TRANSFERRED, 0)}
    prompt = counters.get(Figure.PROMPT, 0)
    if Figure.CACHED in counters:
        told["cached"] = counters[Figure.CACHED]
        told["computed"] = max(0, prompt - told["cached"] - told["transferred"])
    elif Figure.COMPUTED not in counters:
        told["prompt"] = prompt
    if Figure.COMPUTED in counters:
        told["computed"] = counters[Figure.COMPUTED]
    return told
