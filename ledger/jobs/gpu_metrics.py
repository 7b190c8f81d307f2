"""What agents see now as metrics: made anew every 15 seconds, so that what is gone has no series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger import metrics_gpu as g
from ledger.metric import Kind, Labels, Metric
from ledger.web.gpus_api import agents_of, budgets_of, engines_by_process, lock_suspected

if TYPE_CHECKING:
    from ledger.core.samples import GpuPeriod
    from ledger.memory import Budget
    from ledger.store.gpu_reads import AgentNow
    from ledger.web.service import Service

Values = dict[Metric, dict[Labels, float]]


def show_gpus(service: Service) -> None:
    """Replace every gauge of GPUs and watched processes."""
    found = budgets_of(service)
    values: Values = {metric: {} for metric in g.DECLARED if metric.kind is Kind.GAUGE}
    for budget in found:
        _gpu(budget, values)
    engines = engines_by_process(found)
    for agent in agents_of(service):
        values[g.AGENT_HEARD][agent.source.source_id,] = agent.last_end_us / 1e6
        _processes(agent, engines, values)
    for metric, series in values.items():
        service.metrics.replace(metric, dict(list(series.items())[: metric.bound]))


def _gpu(budget: Budget, values: Values) -> None:
    gpu, uuid = budget.gpu, budget.gpu.uuid
    values[g.INFO][uuid, gpu.model, budget.agent.source.host, str(gpu.index), gpu.parent] = 1
    sample = budget.now.sample
    if sample is not None:
        _sample(uuid, sample, values)
    for one in budget.held:
        used = one.process.used_bytes
        if used is not None:
            engine, shard = ("", "") if one.shard is None else (one.shard.engine, one.shard.name)
            key = (uuid, engine, shard, "" if one.health is None else one.health.name)
            values[g.PROCESS_MEMORY][key] = values[g.PROCESS_MEMORY].get(key, 0) + used.mean
    for piece in budget.pieces:
        part = (uuid, piece.part.value)
        values[g.PART_MEMORY][part] = values[g.PART_MEMORY].get(part, 0) + piece.bytes
    if (unexplained := values[g.PART_MEMORY].get((uuid, "unexplained"))) is not None:
        values[g.UNEXPLAINED][uuid,] = unexplained


def _sample(uuid: str, sample: GpuPeriod, values: Values) -> None:
    for state in ("used", "free", "reserved", "total"):
        if (spread := getattr(sample, f"{state}_bytes")) is not None:
            values[g.MEMORY][uuid, state] = spread.mean
    for of, spread in (
        ("kernels", sample.busy_ppm),
        ("memory", sample.memory_busy_ppm),
        ("occupancy", sample.occupancy_ppm),
    ):
        if spread is not None:
            values[g.BUSY][uuid, of] = spread.mean / 1e6
    if sample.power_mw is not None:
        values[g.POWER][uuid,] = sample.power_mw.mean / 1000
    for kind, count in (("corrected", sample.ecc_corrected), ("uncorrected", sample.ecc_uncorrected)):
        if count is not None:
            values[g.ECC][uuid, kind] = count
    for reason, times in sample.throttles or ():
        values[g.THROTTLED][uuid, reason] = times / sample.readings


def _processes(agent: AgentNow, engines: dict[tuple[str, int], str], values: Values) -> None:
    for each in agent.health:
        row, length_us = each.row, each.length_us
        who = (agent.source.host, str(row.pid), row.name)
        key = (*who, engines.get((agent.source.source_id, row.pid), ""))
        suspected = lock_suspected(row, length_us)
        for metric, value in (
            (g.PROCESS_THREADS, row.threads),
            (g.PROCESS_RSS, row.rss_bytes),
            (g.PROCESS_CPU, None if row.cpu_us is None else row.cpu_us / length_us),
            (g.PROCESS_THREAD_BUSY, None if row.busiest_us is None else row.busiest_us / length_us),
            (g.PROCESS_LOCKED, None if suspected is None else int(suspected)),
        ):
            if value is not None:
                values[metric][key] = value
        for of, number in (("workers", row.workers), ("busy", row.workers_busy), ("queued", row.queued)):
            if number is not None:
                values[g.PROCESS_POOL][*who, of] = number
