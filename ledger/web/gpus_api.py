"""GET /v1/gpus, memory, memory/history, processes, agents: what agents see, put together with what hooks say."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from ledger import limits
from ledger.core.periods import HOUR_US, period_start
from ledger.core.records import PERIOD_US
from ledger.core.samples import ProcessPeriod, Spread
from ledger.limits import DAY_US
from ledger.memory import Budget, Held, Part, budgets
from ledger.store.gpu_history import known_gpus, memory_rows
from ledger.store.gpu_reads import AgentNow, agents_now
from ledger.store.shard_reads import ShardNow, held_levels, open_shards
from ledger.web import gpu_shapes, shapes
from ledger.web.answers import Form, Format, Limit, Offset, Since, Until, instant, page
from ledger.web.callers import Overseer
from ledger.web.fleet_api import engines_of
from ledger.web.problems import Problem, listed
from ledger.web.service import Here, Service

router = APIRouter(tags=["gpus"])

LISTED = listed(401, 403, 422, 429, 503)
HISTORY_DAYS = 7

LOCK_PPM = 950_000
"""What of the time the busiest thread has to use before others are said to wait for it."""


def agents_of(service: Service) -> tuple[AgentNow, ...]:
    """The agents, some seconds old at most."""

    def made() -> tuple[AgentNow, ...]:
        with service.database.read() as connection:
            return agents_now(connection, service.clock_us())

    found: tuple[AgentNow, ...] = service.kept.get("agents", made)
    return found


def budgets_of(service: Service) -> tuple[Budget, ...]:
    """Every GPU's memory, some seconds old at most."""

    def made() -> tuple[Budget, ...]:
        agents, now_us = agents_of(service), service.clock_us()
        with service.database.read() as connection:
            shards = open_shards(connection, engines_of(service))
            return budgets(
                agents, shards, lambda agent, held: service.warmth.of(connection, agent, held, now_us=now_us)
            )

    found: tuple[Budget, ...] = service.kept.get("budgets", made)
    return found


def lock_suspected(row: ProcessPeriod, length_us: int) -> bool | None:
    """Whether a process looks as if its threads waited for one; None where threads were not looked at."""
    if row.busiest_us is None or row.waiting_threads is None:
        return None
    return row.busiest_us * 1_000_000 >= LOCK_PPM * length_us and row.waiting_threads > 0


def engines_by_process(found: tuple[Budget, ...]) -> dict[tuple[str, int], str]:
    """The engine of each process that a hook says is its own, by agent and process."""
    return {
        (budget.agent.source.source_id, one.process.pid): one.shard.engine
        for budget in found
        for one in budget.held
        if one.shard is not None
    }


@router.get("/v1/gpus", summary="GPUs, what they do and who has their memory", responses=LISTED)
def gpus(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002 - the name that callers write
) -> shapes.Page[gpu_shapes.Gpu]:
    """Every GPU and instance that an agent sees now, by host and index."""
    rows = [_gpu(budget) for budget in budgets_of(service)]
    columns = [name for name in gpu_shapes.Gpu.model_fields if name not in ("parts", "processes", "throttled")]
    return page(request, rows, limit=limit, offset=offset, form=format, columns=columns)  # type: ignore[return-value]


@router.get("/v1/memory", summary="What each GPU's memory is used for", responses=LISTED)
def memory(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[gpu_shapes.MemoryPart]:
    """The parts of each GPU's memory; those of one GPU sum to its total where the device says it."""
    rows = [
        {
            "host": budget.agent.source.host,
            "gpu": budget.gpu.uuid,
            "index": budget.gpu.index,
            "model": budget.gpu.model,
            "part": piece.part.value,
            "engine": piece.engine,
            "shard": piece.shard,
            "bytes": piece.bytes,
        }
        for budget in budgets_of(service)
        for piece in budget.pieces
    ]
    names = tuple(gpu_shapes.MemoryPart.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get(
    "/v1/memory/history", summary="The memory of one GPU over time", responses=listed(401, 403, 404, 422, 429, 503)
)
def history(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    gpu: Annotated[str, Query(min_length=1, max_length=limits.TEXT_CHARS_MAX, description="its UUID")],
    since: Since = None,
    until: Until = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Report[gpu_shapes.MemoryRow]:
    """The device, its processes, what none of them has, and the KV of engines on it; the last hour unless said."""
    until_us, since_us = instant(until, "to"), instant(since, "from")
    end_us = service.clock_us() if until_us is None else until_us
    start_us = end_us - HOUR_US if since_us is None else since_us
    if not 0 <= end_us - start_us <= HISTORY_DAYS * DAY_US:
        raise Problem(422, "invalid-parameter", f"from, to: at most {HISTORY_DAYS} days, and not backwards")
    with service.database.read() as connection:
        known = [one for one in known_gpus(connection, start_us, end_us) if one.uuid == gpu]
        if not known:
            raise Problem(404, "not-found", f"no agent saw a GPU {gpu[:100]!r} in that time; /v1/gpus has those of now")
        rows = [
            {**{name: getattr(row, name) for name in row.__slots__}, "marks_bytes": list(row.marks_bytes), "engine": ""}
            for row in memory_rows(connection, known, start_us, end_us)
        ]
        for shard in open_shards(connection, engines_of(service)):
            if shard.gpu_uuid == gpu and shard.pools:
                levels = held_levels(connection, shard.boot, shard.pools, start_us, end_us)
                rows += [_kv_row(shard, at_us, held) for at_us, held in levels.items()]
    rows.sort(key=lambda row: (row["start_us"], row["of"], row["engine"], row["pid"] or 0))
    names = [name for name in gpu_shapes.MemoryRow.model_fields if name != "marks_bytes"]
    more = {"from_us": start_us, "to_us": end_us}
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names, more=more)  # type: ignore[return-value]


@router.get("/v1/processes", summary="The health of watched processes", responses=LISTED)
def processes(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[gpu_shapes.Process]:
    """Processes on GPUs, engines' fronts, agents and those that were named, by host and process id."""
    engines = engines_by_process(budgets_of(service))
    rows = [
        {
            "host": agent.source.host,
            "agent": agent.source.source_id,
            **{name: getattr(each.row, name) for name in _HEALTH},
            "watch": each.row.watch.value,
            "engine": engines.get((agent.source.source_id, each.row.pid), ""),
            "cpu_ratio": _ratio(each.row.cpu_us, each.length_us),
            "busiest_ratio": _ratio(each.row.busiest_us, each.length_us),
            "lock_suspected": lock_suspected(each.row, each.length_us),
        }
        for agent in agents_of(service)
        for each in agent.health
    ]
    names = tuple(gpu_shapes.Process.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get("/v1/agents", summary="Who samples, and how far it has come", responses=LISTED)
def agents(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[gpu_shapes.Agent]:
    """Agents, and exporters of GPUs that are scraped, heard in the last 24 hours, by name."""
    rows = [
        {
            "agent": agent.source.source_id,
            "state": "quiet" if agent.quiet else "heard",
            **{name: getattr(agent.source, name) for name in _DESCRIBED},
            **{name: getattr(agent, name) for name in _STATE},
            "gpus": len(agent.gpus),
        }
        for agent in agents_of(service)
    ]
    names = tuple(gpu_shapes.Agent.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


_HEALTH = (
    *("pid", "inner_pid", "name", "started_us", "threads", "rss_bytes", "busiest", "waiting_threads", "workers"),
    *("workers_busy", "queued"),
)
_DESCRIBED = ("host", "cluster", "namespace", "pod", "software", "driver")
_STATE = ("boot_id", "started_us", "last_seq", "last_end_us", "received_us")


def _gpu(budget: Budget) -> dict[str, Any]:
    now, gpu, source = budget.now, budget.gpu, budget.agent.source
    sample = now.sample
    figures: dict[str, Any] = {
        f"{name}_bytes": None if sample is None else _mean(getattr(sample, f"{name}_bytes"))
        for name in ("used", "free", "total", "reserved")
    }
    for name in ("busy", "memory_busy", "occupancy"):
        ppm = None if sample is None else _mean(getattr(sample, f"{name}_ppm"))
        figures[f"{name}_ratio"] = None if ppm is None else ppm / 1e6
    power = None if sample is None else _mean(sample.power_mw)
    throttled = None
    if sample is not None and sample.throttles is not None:
        throttled = {reason: round(times / sample.readings, 6) for reason, times in sample.throttles}
    together = [None if one.process.used_bytes is None else one.process.used_bytes.mean for one in budget.held]
    known = [value for value in together if value is not None]
    return {
        "gpu": gpu.uuid, "model": gpu.model, "index": gpu.index, "parent": gpu.parent, "instance": gpu.instance,
        "host": source.host, "cluster": source.cluster, "agent": source.source_id, "driver": source.driver,
        "end_us": now.end_us, **figures,
        "processes_bytes": sum(known) if now.rest is not None and len(known) == len(together) else None,
        "unexplained_bytes": budget.sum_of(Part.UNEXPLAINED),
        "power_watts": None if power is None else power / 1000,
        "ecc_corrected": None if sample is None else sample.ecc_corrected,
        "ecc_uncorrected": None if sample is None else sample.ecc_uncorrected,
        "throttled": throttled,
        "parts": [
            {"part": piece.part.value, "bytes": piece.bytes, "engine": piece.engine, "shard": piece.shard}
            for piece in budget.pieces
        ],
        "processes": [_process(one) for one in budget.held],
    }  # fmt: skip


def _process(one: Held) -> dict[str, Any]:
    return {
        "pid": one.process.pid,
        "name": one.health.name if one.health is not None else "",
        "engine": one.shard.engine if one.shard is not None else "",
        "shard": one.shard.name if one.shard is not None else "",
        "used_bytes": _mean(one.process.used_bytes),
    }


def _kv_row(shard: ShardNow, at_us: int, held: int) -> dict[str, Any]:
    nothing = dict.fromkeys(("pid", "least_bytes", "most_bytes", "free_bytes", "total_bytes", "reserved_bytes"))
    return {
        **nothing, "start_us": at_us, "end_us": period_start(at_us) + PERIOD_US, "gpu": shard.gpu_uuid,
        "of": "kv", "engine": shard.engine, "mean_bytes": held, "marks_bytes": [],
    }  # fmt: skip


def _mean(spread: Spread | None) -> int | None:
    return None if spread is None else spread.mean


def _ratio(part_us: int | None, length_us: int) -> float | None:
    return None if part_us is None or not length_us else round(part_us / length_us, 6)
