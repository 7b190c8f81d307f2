"""POST /v1/batches: where facts come in.

Invariants: a batch is answered as taken only once it is durable; what is not looked at (too many at once, the
database away) is answered 429 or 503 with a Retry-After, and its sender keeps it; what is refused for good is a 4xx
that names the reason. Receiving and waiting are the event loop's; the rest is the worker's of :mod:`ledger.booking`.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from ledger import limits
from ledger import metrics as m
from ledger.errors import StoreError
from ledger.ingest import Status
from ledger.refusals import Reason
from ledger.web.bodies import held, unpacked
from ledger.web.callers import BEARER, sender
from ledger.web.problems import Problem, later, responses
from ledger.web.service import Service, service_of
from ledger.wire import answer

router = APIRouter()

RECEIPTS: Final = {
    Status.ACCEPTED: answer.Receipt.ACCEPTED,
    Status.DUPLICATE: answer.Receipt.DUPLICATE,
    Status.QUARANTINED: answer.Receipt.QUARANTINED,
}

CONFLICTS: Final = {
    Reason.OTHER_ORIGIN, Reason.OTHER_BOOT, Reason.KEY_REUSED, Reason.BROKEN_CHAIN, Reason.TIME_REVERSED,
    Reason.TWO_PAYING,
}  # fmt: skip
"""Refused because of what the ledger holds; anything else is refused for what the batch itself says."""

EXAMPLE: Final = {
    "status": "accepted", "service_time_us": 1_795_000_815_412_345, "setpoints": {"revision": 0},
}  # fmt: skip


_BATCH_SCHEMA: Final[dict[str, Any]] = {
    "security": [{BEARER.scheme_name: []}],
    "requestBody": {
        "required": True,
        "description": "One encoded batch of an engine, or samples of an agent (docs/wire.md): canonical JSON, gzip if "
        "Content-Encoding says so.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["digest", "kvledger", "prev"],
                    "properties": {
                        "agent": {"type": "object", "description": "samples; in place of `batch`"},
                        "batch": {"type": "object"},
                        "digest": {"type": "string", "description": "SHA-256 of the document without it, in hex"},
                        "kvledger": {"type": "integer", "description": "the major version"},
                        "prev": {
                            "type": "string",
                            "description": "the digest of the batch before, empty for the first",
                        },
                    },
                }
            }
        },
    },
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "enum": ["gzip", "identity"]},
        }
    ],
}


@router.post(
    "/v1/batches",
    tags=["ingest"],
    summary="Deliver one batch",
    response_class=Response,
    openapi_extra=_BATCH_SCHEMA,
    responses={
        200: {
            "description": "It is in the ledger (now, or since an earlier delivery).",
            "content": {"application/json": {"example": EXAMPLE}},
        },
        202: {
            "description": "Its major version is not known here: it is kept, and read after an upgrade.",
            "content": {"application/json": {"example": {**EXAMPLE, "status": "quarantined"}}},
        },
        **responses(400, 401, 403, 408, 409, 413, 415, 422, 429, 503),
    },
)
async def deliver(request: Request) -> Response:
    """Take one batch. Send those of a boot in the order of their `seq`, each until it is answered.

    Go on to the next after any answer but 401, 408, 413, 429 and 5xx; after these send the same again, not before
    `Retry-After` where there is one. A batch may be delivered any number of times; it counts once.
    """
    service = service_of(request)
    await sender(request, service)
    try:
        return await _deliver(request, service)
    except (Problem, StoreError) as turned_away:
        status = turned_away.status if isinstance(turned_away, Problem) else 503
        if not isinstance(turned_away, Problem) or turned_away.name != "refused":
            service.metrics.add(m.INGEST_TURNED_AWAY, (str(status),))
        raise


async def _deliver(request: Request, service: Service) -> Response:
    async with held(request, service.room, bytes_max=limits.BATCH_BODY_BYTES_MAX) as body:
        started_s = perf_counter()
        if not service.ingests.acquire(blocking=False):
            detail = f"{limits.INGESTS_MAX} batches are being booked at the moment; send it again"
            raise later(429, "busy", detail, after_s=1)
        encoding = request.headers.get("content-encoding", "")
        try:
            booked = await service.booking.accept(partial(unpacked, body, encoding, bytes_max=limits.BATCH_BYTES_MAX))
        finally:
            service.ingests.release()
        metrics = service.metrics
        metrics.add(m.INGEST_BYTES, ("travelling",), len(body))
    metrics.add(m.INGEST_BYTES, ("plain",), booked.plain_bytes)
    outcome = booked.outcome
    service.live.answered(outcome, booked.received_us)
    metrics.observe(m.INGEST_TIME, (), perf_counter() - started_s)
    if outcome.status is Status.REFUSED:
        assert outcome.refusal is not None
        reason = outcome.refusal.reason
        status = 409 if reason in CONFLICTS else 422
        raise Problem(status, "refused", outcome.refusal.detail, more={"reason": reason})
    content = answer.encode(answer.Answer(status=RECEIPTS[outcome.status], service_time_us=service.clock_us()))
    status = 202 if outcome.status is Status.QUARANTINED else 200
    return Response(content, status_code=status, media_type="application/json")
