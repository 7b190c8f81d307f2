"""GET /v1/engines, sources, batches, quarantine, findings, live, troubles: what is there, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import JSONResponse

from ledger import limits
from ledger.store import fleet, migrate, quarantine
from ledger.store.findings import list_findings
from ledger.store.fleet import EngineState, PoolState
from ledger.web import shapes
from ledger.web.answers import Form, Format, Limit, Offset, Since, Until, instant, page
from ledger.web.callers import Admin, Overseer, ReaderOf
from ledger.web.outside import Seen, outside, row_of, scraped_value
from ledger.web.problems import Problem, listed, responses
from ledger.web.service import Here, Service
from ledger.web.troubles import troubles

router = APIRouter(tags=["fleet"])

LISTED = listed(401, 403, 422, 429, 503)
Ordinary: Limit = limits.PAGE_ROWS_DEFAULT


def engines_of(service: Service, *, all_of_them: bool = False) -> tuple[EngineState, ...]:
    """The engines, some seconds old at most."""

    def made() -> tuple[EngineState, ...]:
        with service.database.read() as connection:
            return fleet.engine_states(connection, service.clock_us(), all_of_them=all_of_them)

    found: tuple[EngineState, ...] = service.kept.get(("engines", all_of_them), made)
    return found


@router.get("/v1/engines", summary="Engines and the KV blocks in their pools", responses=LISTED)
def engines(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002 - the name that callers write
) -> shapes.Page[shapes.Engine]:
    """Engines heard of in the last 24 hours and those that are scraped, by name."""
    seen = outside(service)
    rows = [_engine(engine, seen.get(engine.engine)) for engine in engines_of(service)]
    hooked = {row["engine"] for row in rows}
    # An exporter of GPUs is no engine: /v1/gpus has what it sees.
    rows += [row_of(each) for name, each in seen.items() if name not in hooked and not each.exporter]
    rows.sort(key=lambda row: row["engine"])
    return page(request, rows, limit=limit, offset=offset, form=format, columns=_ENGINE_COLUMNS)  # type: ignore[return-value]


@router.get("/v1/sources", summary="Who reports, how far it has come, what is missing", responses=LISTED)
def sources(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.Source]:
    """Every engine that ever reported, with the sender of its newest batch."""
    names = tuple(shapes.Source.model_fields)
    rows = [_source(engine, names) for engine in engines_of(service, all_of_them=True)]
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get("/v1/batches", summary="The last batches", responses=LISTED)
def batches(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.Batch]:
    """The newest batches of the engines that were heard last, newest first; no more pages than this one."""

    def made() -> list[dict[str, Any]]:
        with service.database.read() as connection:
            found = fleet.recent_batches(connection, engines_of(service), most=limit)
        return [asdict(batch) for batch in found]

    rows = service.kept.get(("batches", limit), made)
    names = tuple(shapes.Batch.model_fields)
    return page(request, rows, limit=limit, offset=0, form=format, columns=names)  # type: ignore[return-value]


@router.get("/v1/quarantine", summary="Batches that were refused", responses=LISTED)
def quarantined(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.Quarantined]:
    """Newest first. `kvledger quarantine retry` tries them again."""
    with service.database.read() as connection:
        rows = [asdict(entry) for entry in reversed(quarantine.entries(connection))]
    names = tuple(shapes.Quarantined.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get(
    "/v1/quarantine/{number}",
    summary="A refused batch, as it came",
    response_class=Response,
    responses={
        200: {"description": "Its bytes.", "content": {"application/octet-stream": {}}},
        **responses(401, 403, 404, 422, 429, 503),
    },
)
def quarantined_bytes(service: Here, _caller: Admin, number: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
    """For a token for admin only: it may hold anything."""
    with service.database.read() as connection:
        found = quarantine.entry(connection, number)
    if found is None:
        raise Problem(404, "not-found", f"nothing in quarantine has the number {number}; /v1/quarantine lists it")
    headers = {"Content-Disposition": f'attachment; filename="quarantined-{number}.json"'}
    return Response(found[1], media_type="application/octet-stream", headers=headers)


@router.get("/v1/findings", summary="What somebody should look at", responses=LISTED)
def findings(
    *,
    request: Request,
    service: Here,
    _caller: Overseer,
    since: Since = None,
    until: Until = None,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.Finding]:
    """Findings that speak of the time asked for, newest first."""
    with service.database.read() as connection:
        found = list_findings(connection, start_us=instant(since, "from"), end_us=instant(until, "to"))
    rows = [asdict(finding) for finding in reversed(found)]
    names = tuple(shapes.Finding.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get("/v1/live", summary="Sessions in the newest period of every engine", responses=LISTED)
def live(
    *,
    request: Request,
    service: Here,
    caller: ReaderOf,
    limit: Limit = limits.PAGE_ROWS_DEFAULT,
    offset: Offset = 0,
    format: Format = Form.JSON,  # noqa: A002
) -> shapes.Page[shapes.LiveSession]:
    """Who holds blocks now, those with most first: a period is at most 60 seconds old."""

    def made() -> list[dict[str, Any]]:
        with service.database.read() as connection:
            found = fleet.live_sessions(connection, engines_of(service), service.clock_us())
        rows = [
            {
                "engine": row.engine,
                "pool": row.pool,
                **asdict(row.dims),
                "end_us": row.end_us,
                "active_blocks": round(row.active_block_us / row.length_us, 3) if row.length_us else 0.0,
                "cached_blocks": row.cached_blocks_end,
                "compute_ratio": round(row.compute_us / row.length_us, 6) if row.length_us else 0.0,
                "output_tokens": row.output_tokens,
                "recomputed_tokens": row.recomputed_tokens,
            }
            for row in found
        ]
        return sorted(
            rows, key=lambda row: (-row["active_blocks"], -row["cached_blocks"], row["tenant"], row["session"])
        )

    rows = service.kept.get("live", made)
    if caller.tenant is not None:
        rows = [row for row in rows if row["tenant"] == caller.tenant]
    names = tuple(shapes.LiveSession.model_fields)
    return page(request, rows, limit=limit, offset=offset, form=format, columns=names)  # type: ignore[return-value]


@router.get("/v1/troubles", summary="What is wrong now", responses=responses(401, 403, 422, 429, 503))
def wrong(service: Here, _caller: Overseer) -> list[shapes.Trouble]:
    """Engines that fell silent, batches that are missing or refused, findings, jobs that failed; worst first."""
    rows = service.kept.get("troubles", lambda: troubles(service, engines_of(service), outside(service).values()))
    return JSONResponse(rows)  # type: ignore[return-value]


@router.get("/healthz", tags=["service"], summary="Whether the service can do its work", responses=responses(503))
def health(service: Here) -> dict[str, str]:
    """200 where the database answers and has this version's tables; for load balancers, without a token."""
    at = service.kept.get("revision", lambda: migrate.current(service.database))
    if at != migrate.head():
        raise Problem(503, "schema", "the database has another version's tables; run: kvledger db upgrade")
    return {"status": "ok"}


_ENGINE_COLUMNS = tuple(name for name in shapes.Engine.model_fields if name not in ("pools", "scraped"))


def _engine(engine: EngineState, seen: Seen | None) -> dict[str, Any]:
    names = shapes.Engine.model_fields
    row = {name: value for name, value in {**asdict(engine), "hook_off": engine.hook.off}.items() if name in names}
    return {
        **row,
        "method": "hook",
        "state": engine.state.value,
        "pools": [_pool(pool) for pool in engine.pools],
        "scraped": None if seen is None else scraped_value(seen),
    }


def _source(engine: EngineState, names: tuple[str, ...]) -> dict[str, Any]:
    row = {
        **asdict(engine),
        "state": engine.state.value,
        "lag_us": engine.received_us - engine.last_end_us,
        "dropped": engine.dropped,
        "faults": engine.faults,
        "hook_off": engine.hook.off,
    }
    return {name: row[name] for name in names}


def _pool(pool: PoolState) -> dict[str, Any]:
    row = asdict(pool)
    used_us, period_us = row.pop("active_block_us"), row.pop("period_us")
    free = None
    if pool.active_blocks is not None and pool.cached_blocks is not None:
        free = pool.blocks - pool.active_blocks - pool.cached_blocks
    ratio = round(used_us / (pool.blocks * period_us), 6) if used_us is not None and period_us else None
    return {**row, "shards": list(pool.shards), "free_blocks": free, "utilization_ratio": ratio}
