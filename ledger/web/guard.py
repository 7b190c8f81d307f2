"""Around every request: security headers on the answer, its count and its time.

Invariants: no answer leaves without the headers; no page runs a script or takes a style that is not a file of ours,
so an id full of markup stays text even where somebody forgets to escape it; metrics know routes, never paths.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from ledger import metrics as m

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ledger.metrics import Metrics

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Trusted types: the browser itself refuses to turn text into markup (``innerHTML`` and the like)."""

HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

YEAR_S: Final = 31_536_000

_OURS: Final = {name.encode(): value.encode() for name, value in HEADERS.items()}
_NOT_KEPT: Final = b"cache-control", b"no-store"
_HTTPS_ONLY: Final = b"strict-transport-security", f"max-age={YEAR_S}".encode()


class Guard:
    """ASGI middleware, the outermost of ours."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = perf_counter()
        status = 500

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = [(name, value) for name, value in message["headers"] if name.lower() not in _OURS]
                if b"cache-control" not in {name.lower() for name, _ in given}:
                    given.append(_NOT_KEPT)
                if scope["scheme"] == "https":
                    given.append(_HTTPS_ONLY)
                message["headers"] = [*given, *_OURS.items()]
            await send(message)

        self._tell_workers()  # before, too: where every worker is stuck, no request ends
        try:
            await self._app(scope, receive, guarded)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.add(m.HTTP_REQUESTS, (route, str(status)))
            self._metrics.observe(m.HTTP_TIME, (route,), perf_counter() - started_s)
            self._tell_workers()

    def _tell_workers(self) -> None:
        workers = anyio.to_thread.current_default_thread_limiter()
        is_full = workers.borrowed_tokens >= workers.total_tokens
        self._metrics.put(m.WORKERS_BUSY, (), workers.borrowed_tokens)
        self._metrics.put(m.WORKERS, (), workers.total_tokens)
        self._metrics.put(m.WORKERS_QUEUED, (), workers.statistics().tasks_waiting if is_full else 0)
