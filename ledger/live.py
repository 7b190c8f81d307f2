"""What is going on now: each batch that is taken feeds the metrics of the process that took it.

Invariant: only a batch of now does (received at most two minutes after its period ended, accepted for the first
time, valid); a spool that drains moves the books, the lag and nothing else. Labels come from engines and headers,
so the metrics bound them.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ledger import limits
from ledger import metrics as m
from ledger import metrics_gpu as g
from ledger.core.quantiles import bucket_middle
from ledger.core.records import Outcome as Ending
from ledger.ingest import Outcome, Status
from ledger.metric import ENGINES
from ledger.store.tables import PREEMPTION_COLUMNS, TOKEN_COLUMNS

if TYPE_CHECKING:
    from ledger.core.records import Batch, Histogram, PoolOpen, PoolPeriod, RequestRecord
    from ledger.core.samples import SampleBatch
    from ledger.metric import Labels, Metric
    from ledger.metrics import Metrics

_LATENCIES: Final = {
    "queue_us": m.QUEUE_TIME,
    "first_token_us": m.FIRST_TOKEN_TIME,
    "inter_token_us": m.INTER_TOKEN_TIME,
    "end_to_end_us": m.END_TO_END_TIME,
}
"""The hooks' histograms (docs/hook.md) that are told apart by scenario and priority."""

_tokens: Final = attrgetter(*TOKEN_COLUMNS)
_preemptions: Final = attrgetter(*PREEMPTION_COLUMNS)


@dataclass(slots=True)
class _Engine:
    boot: str
    shards: dict[str, tuple[str, ...]]
    """Names of the shards of each open pool."""


class Live:
    """Feeds :class:`~ledger.metrics.Metrics` from answered batches; thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._engines: dict[str, _Engine] = {}
        self._lock = threading.Lock()

    def answered(self, outcome: Outcome, received_us: int) -> None:
        """Count an answer, and show its batch if it is one of now."""
        metrics = self._metrics
        reason = "" if outcome.refusal is None else outcome.refusal.reason
        metrics.add(m.BATCHES, (outcome.status.value, reason))
        if outcome.samples is not None:
            self._count_samples(outcome.samples, outcome.missing_before)
        batch = outcome.batch
        if outcome.status is not Status.ACCEPTED or batch is None:
            return
        engine = batch.source.engine
        for metric, by in (
            (m.BATCH_GAPS, outcome.missing_before),
            (m.BATCHES_LOST, int(outcome.lost)),
            (m.BATCHES_AHEAD, int(outcome.ahead)),
        ):
            if by:
                metrics.add(metric, (engine,), by)
        lag_us = received_us - batch.end_us
        metrics.observe(m.BATCH_LAG, (), max(0, lag_us) / 1e6)
        if lag_us <= limits.LIVE_AGE_US_MAX and not outcome.lost:
            self._show(batch)

    def _count_samples(self, samples: SampleBatch, missing_before: int) -> None:
        """What an agent could not see, and what did not arrive; the rest is shown by the process that leads."""
        agent = samples.source.source_id
        for trouble in samples.troubles:
            self._metrics.add(g.AGENT_TROUBLES, (agent, trouble.reason), trouble.count)
        if missing_before:
            self._metrics.add(g.AGENT_GAPS, (agent,), missing_before)

    def _show(self, batch: Batch) -> None:
        engine, metrics = batch.source.engine, self._metrics
        metrics.put(m.ENGINE_HEARD, (engine,), batch.end_us / 1e6)
        metrics.put(m.ENGINE_SKEW, (engine,), batch.skew_us / 1e6)
        self._show_pools(batch)
        for metric, said in ((m.HOOK_DROPPED, batch.hook.dropped), (m.HOOK_FAULTS, batch.hook.faults)):
            for reason, count in said:
                metrics.report(metric, (engine, reason), count)
        self._show_work(batch)
        for histogram in batch.histograms:
            self._show_histogram(engine, histogram)
        self._show_requests(batch)

    def _show_requests(self, batch: Batch) -> None:
        """By scenario, so that the metrics are locked a few times a batch and not for every request."""
        metrics = self._metrics
        ended: Counter[tuple[str, str]] = Counter()
        prompts: defaultdict[str, list[int]] = defaultdict(list)
        outputs: defaultdict[str, list[int]] = defaultdict(list)
        slowest: dict[tuple[str, str], RequestRecord] = {}
        for request in batch.requests:
            scenario = request.dims.scenario
            ended[scenario, request.outcome.value] += 1
            prompts[scenario].append(request.prompt_tokens)
            outputs[scenario].append(request.tokens.output)
            if request.outcome is Ending.FINISHED:
                kind = scenario, str(request.dims.priority)
                if kind not in slowest or _took_us(request) > _took_us(slowest[kind]):
                    slowest[kind] = request
        for labels, times in ended.items():
            metrics.add(m.REQUESTS, labels, times)
        for direction, lengths in (("in", prompts), ("out", outputs)):
            for scenario, values in lengths.items():
                metrics.merge(m.REQUEST_LENGTH, (scenario, direction), [(value, 1) for value in values], sum(values))
        for kind, request in slowest.items():
            # The value itself is in the hook's histogram; only its trace to a session is added.
            exemplar = "session", request.dims.session, request.ended_us / 1e6
            metrics.remark(m.END_TO_END_TIME, kind, _took_us(request) / 1e6, exemplar=exemplar)

    def _show_pools(self, batch: Batch) -> None:
        engine = batch.source.engine
        with self._lock:
            known = self._engines.get(engine)
            if known is None or known.boot != batch.boot.boot_id:
                self._forget(engine)
                known = self._engines[engine] = _Engine(boot=batch.boot.boot_id, shards={})
                if len(self._engines) > ENGINES:
                    gone = next(iter(self._engines))
                    del self._engines[gone]
                    self._forget(gone)
            for opened in batch.opens:
                known.shards[opened.pool] = _shards(opened)
            for pool in batch.pools:
                self._show_pool(engine, pool, known.shards.get(pool.pool, ("",)), batch.end_us - batch.start_us)
            for closed in batch.closes:
                known.shards.pop(closed.pool, None)
            if batch.closes and not known.shards:
                self._forget_pools(engine)

    def _show_pool(self, engine: str, pool: PoolPeriod, shards: tuple[str, ...], length_us: int) -> None:
        free = pool.blocks - pool.active_blocks_end - pool.cached_blocks_end
        states = (("active", pool.active_blocks_end), ("cached", pool.cached_blocks_end), ("free", free))
        for shard in shards:
            where = (engine, pool.pool, shard)
            if length_us:
                self._metrics.put(m.KV_UTILIZATION, where, pool.active_block_us / (pool.blocks * length_us))
            for state, blocks in states:
                self._metrics.put(m.KV_BLOCKS, (*where, state), blocks)

    def _forget(self, engine: str) -> None:
        """Another boot: its pools are others, and its hook may count from 0."""
        self._forget_pools(engine)
        self._metrics.forget(m.HOOK_DROPPED, engine)
        self._metrics.forget(m.HOOK_FAULTS, engine)

    def _forget_pools(self, engine: str) -> None:
        self._metrics.forget(m.KV_UTILIZATION, engine)
        self._metrics.forget(m.KV_BLOCKS, engine)

    def _show_work(self, batch: Batch) -> None:
        engine, metrics = batch.source.engine, self._metrics
        steps, step_us = sum(pool.steps for pool in batch.pools), sum(pool.step_us for pool in batch.pools)
        if steps:
            metrics.add(m.ENGINE_STEPS, (engine,), steps)
            metrics.add(m.ENGINE_STEP_TIME, (engine,), step_us / 1e6)
        tokens = zip(*[_tokens(row.tokens) for row in batch.sessions], strict=True)
        for name, column in zip(TOKEN_COLUMNS, tokens, strict=False):
            if count := sum(column):
                metrics.add(m.ENGINE_TOKENS, (engine, name), count)
        preempted = zip(*[_preemptions(row.preemptions) for row in batch.sessions], strict=True)
        for name, column in zip(PREEMPTION_COLUMNS, preempted, strict=False):
            if count := sum(column):
                metrics.add(m.ENGINE_PREEMPTIONS, (engine, name), count)

    def _show_histogram(self, engine: str, histogram: Histogram) -> None:
        labels: dict[str, str] = dict(histogram.labels)
        to: tuple[Metric, Labels, float] | None = None
        if metric := _LATENCIES.get(histogram.name):
            to = metric, (labels.get("scenario", ""), labels.get("priority", "")), 1e6
        elif histogram.name == "step_latency_us":
            parts = labels.get("phase", ""), labels.get("shard", ""), labels.get("method", "wall")
            to = m.STEP_LATENCY, (engine, *parts), 1e6
        elif histogram.name == "step_batch_requests":
            to = m.STEP_REQUESTS_SCHEDULED, (engine,), 1
        if to is not None:
            # Negative indices mean nothing to core.quantiles; a hook of another make could send them.
            pairs = [(bucket_middle(index) / to[2], count) for index, count in histogram.buckets if index >= 0]
            self._metrics.merge(to[0], to[1], pairs, histogram.total / to[2])


def _took_us(request: RequestRecord) -> int:
    return request.ended_us - request.arrived_us


def _shards(opened: PoolOpen) -> tuple[str, ...]:
    """Names of a pool's shards: their ranks, and the GPU where it is known."""
    names = tuple(
        f"dp{shard.dp}pp{shard.pp}tp{shard.tp}" + (f" {shard.gpu_uuid}" if shard.gpu_uuid else "")
        for shard in opened.shards[: limits.POOLS_MAX]
    )
    return names or ("",)
