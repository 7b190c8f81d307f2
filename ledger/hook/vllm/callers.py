"""Whom a request belongs to, carried from vLLM's API server to its engine core.

Invariants: what the core takes for a caller was signed by the API server's half of this hook; in the core a request's
own ``session_id`` is what it would be without the hook; a request that nobody is named for is ``unattributed``.

The way: :class:`CallerMiddleware` resolves the caller and leaves it in a context variable, which follows a request
through every task that works for it. So it counts for each of vLLM's endpoints, and no ``session_id`` in a body can go
past it. ``InputProcessor`` makes the message to the core; there the signed caller goes in front of ``session_id``, the
one free text that vLLM 0.32 carries to ``Request``, where the two are taken apart again.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ledger.hook.identity import SCOPE_KEY, Caller, Identity, Ignored, is_packed, pack, unpack
from ledger.hook.vllm.guard import Guarded, guarded

if TYPE_CHECKING:
    from ledger.hook.identity import App, Scope

_ATTRIBUTE: Final = "kvledger_caller"
"""Where a core request has its caller."""
_NOBODY: Final = Caller()
_SIGNATURES_KEPT: Final = 4096

_caller: ContextVar[Caller | None] = ContextVar("kvledger_caller", default=None)


class CallerMiddleware(Guarded):
    """ASGI middleware: resolves the caller, for :class:`Carrier` and in ``scope["kvledger.caller"]``.

    Unlike :class:`~ledger.hook.identity.IdentityMiddleware` it leaves the headers as they are. Where that one has run
    already, its answer counts.
    """

    def __init__(self, app: App, identity: Identity) -> None:
        super().__init__()
        self._app = app
        self._identity = identity

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """See :class:`CallerMiddleware`."""
        token = _caller.set(None)
        try:
            if scope["type"] in {"http", "websocket"}:
                self._resolve(scope)
            await self._app(scope, receive, send)
        finally:
            _caller.reset(token)

    @guarded
    def _resolve(self, scope: Scope) -> None:
        caller = scope.get(SCOPE_KEY)
        if caller is None:
            client = scope.get("client")
            caller = self._identity.resolve(client[0] if client else None, scope.get("headers") or ())
            scope[SCOPE_KEY] = caller
        _caller.set(caller)


class Carrier(Guarded):
    """Both ends of the hand-over; ``key`` signs it."""

    def __init__(self, key: bytes, identity: Identity) -> None:
        super().__init__()
        self._key = key
        self._identity = identity
        self._signed = functools.lru_cache(maxsize=_SIGNATURES_KEPT)(lambda caller: pack(caller, key))

    @guarded
    def send(self, request: Any) -> None:
        """``InputProcessor.process_inputs`` made the message to the core: it gets the caller of this task."""
        caller = _caller.get()
        if caller is not None:
            own = request.session_id
            request.session_id = self._signed(caller) if own is None else f"{self._signed(caller)}\n{own}"

    @guarded
    def receive(self, request: Any) -> None:
        """``Request.from_engine_core_request`` made a core request: the caller is taken off its session id."""
        text = request.session_id
        if not is_packed(text):
            return
        signed, separator, own = text.partition("\n")
        caller = unpack(signed, self._key)
        if caller is None:
            self._identity.ignore(Ignored.BAD_HANDOVER)
            return
        request.session_id = own if separator else None
        setattr(request, _ATTRIBUTE, caller)


def caller_of(request: Any, key: bytes) -> Caller:
    """The caller of a request in the engine core; ``unattributed`` where none was handed over with this ``key``.

    Its priority is the engine's own where the request has one (``X-Vllm-Priority``, or the body's), since it is
    scheduled by that; else the caller's label (``X-Priority``).
    """
    caller: Caller | None = getattr(request, _ATTRIBUTE, None)
    if caller is None and is_packed(request.session_id):
        caller = unpack(request.session_id, key)  # vLLM with IdentityMiddleware, and nothing to take it off
    caller = caller or _NOBODY
    if request.priority and request.priority != caller.priority:
        return replace(caller, priority=request.priority)
    return caller
