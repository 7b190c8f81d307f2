"""The application: routes, errors, the description at /openapi.json, and what stands around every request.

Handlers are plain functions that run in worker threads; only batches are received in the event loop, where they wait
for the thread that books them.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

import ledger
from ledger import metrics as m
from ledger.web import batches_api, figures_api, fleet_api, gpus_api, pages, problems
from ledger.web.callers import Bearer, Login, reader
from ledger.web.guard import Guard
from ledger.web.problems import ProblemDetails, responses
from ledger.web.service import Here, Service

DESCRIPTION = """\
Who held every paid GPU-second, and what of it was wasted.

Times are microseconds since 1970-01-01 UTC (`_us`) or ISO 8601 with an offset, intervals are half-open, money is
integer nano-units of the ledger's currency (`_nanos`). Integers are exact; those of block time (`_block_us`) may pass
2^53. Every error is a problem document (RFC 9457). A list has `rows` and `next`, the path of the next page; with
`format=csv` it is CSV. Send `Authorization: Bearer kvl_…`; a token of one tenant sees that tenant's figures alone.
"""

TAGS = [
    {"name": "figures", "description": "What was used and what it cost."},
    {"name": "fleet", "description": "Who reports, and what is wrong."},
    {"name": "gpus", "description": "GPUs, their memory and the processes on them, as agents see them."},
    {"name": "ingest", "description": "Where engines deliver."},
    {"name": "service", "description": "About the service itself."},
]

router = APIRouter(tags=["service"])


def make_app(service: Service) -> FastAPI:
    """The ASGI application of one process."""
    app = FastAPI(
        title="kvledger",
        version=ledger.__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    app.state.service = service
    problems.install(app)
    # Batches first: routes are tried in order.
    batches, figures, fleet, gpus = batches_api.router, figures_api.router, fleet_api.router, gpus_api.router
    for routes in (batches, figures, fleet, gpus, pages.api, router, pages.router):
        app.include_router(routes)
    app.add_middleware(Guard, metrics=service.metrics)
    service.metrics.put(m.BUILD, (ledger.__version__,), 1)
    described = app.openapi

    def openapi() -> dict[str, Any]:
        document = described()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["ProblemDetails"] = ProblemDetails.model_json_schema()
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"description": "docs/metrics.md", "content": {"text/plain": {}}}, **responses(401, 403, 429, 503)},
)
def metrics(
    request: Request, service: Here, bearer: Bearer, login: Login, accept: Annotated[str, Header(max_length=2000)] = ""
) -> Response:
    """In the text format, or in OpenMetrics (which has exemplars) where it is asked for."""
    if not service.settings.metrics_open:
        reader(request, service, bearer, login)
    values = service.metrics
    values.put(m.THREADS, (), threading.active_count())
    file = service.database.engine.url.database
    if service.database.dialect == "sqlite" and file:
        values.put(m.DISK_FREE, (), shutil.disk_usage(Path(file).resolve().parent).free)
    if "application/openmetrics-text" in accept:
        text = openmetrics.generate_latest(service.registry)  # type: ignore[no-untyped-call]
        return Response(text, media_type=openmetrics.CONTENT_TYPE_LATEST)
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)
