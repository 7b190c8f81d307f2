"""vLLM's API server: tenants by header or API key, with no flag.

Invariants: an application that vLLM builds gets the middleware once, outside of all others; nothing of vLLM is imported
that the process does not have for its own sake.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from ledger.hook import settings
from ledger.hook.identity import Identity
from ledger.hook.vllm.callers import CallerMiddleware, Carrier

if TYPE_CHECKING:
    from collections.abc import Callable

log: Final = logging.getLogger("kvledger.hook")

_APP_MODULE: Final = "vllm.entrypoints.launchers.app"
"""It calls ``init_entrypoints_middleware`` by a name of its own. Who serves has it before plugins are loaded."""
_MARK: Final = "_kvledger_wrapped"


def attach() -> None:
    """Wrap what builds applications, where this process has it, and what makes core requests."""
    from vllm.v1.request import Request  # noqa: PLC0415 - the engine's, in its process alone

    found = settings.load(os.environ)
    carrier = Carrier(found.handover_key, Identity(found.trust))
    made = Request.from_engine_core_request
    if not hasattr(made, _MARK):
        Request.from_engine_core_request = staticmethod(_then(made, carrier.receive))
    app_module: Any = sys.modules.get(_APP_MODULE)
    if app_module is not None and not hasattr(app_module.init_entrypoints_middleware, _MARK):
        app_module.init_entrypoints_middleware = _middleware_too(app_module.init_entrypoints_middleware)


def add_to(app: Any) -> None:
    """Put the middleware into an application (Starlette's or FastAPI's) that serves vLLM's ``AsyncLLM``.

    The hook does it by itself for applications of vLLM's own servers; for one of your own, call this after
    ``AsyncEngineArgs`` were made and before it serves. It does nothing while the hook is switched off.
    """
    found = settings.load(os.environ)
    if not found.enabled:
        return
    from vllm.v1.engine.input_processor import InputProcessor  # noqa: PLC0415 - as above

    identity = Identity(found.trust)
    if not hasattr(InputProcessor.process_inputs, _MARK):
        carrier = Carrier(found.handover_key, identity)
        InputProcessor.process_inputs = _then(InputProcessor.process_inputs, carrier.send)
    app.add_middleware(CallerMiddleware, identity=identity)


def _middleware_too(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def call(args: Any, app: Any, *rest: Any, **more: Any) -> None:
        init(args, app, *rest, **more)
        try:
            add_to(app)
        except Exception:
            log.exception("kvledger: no middleware for this server, so its requests are unattributed")

    setattr(call, _MARK, True)
    return call


def _then(make: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    """``make``, whose result is shown to ``note`` before it is returned."""

    @functools.wraps(make)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        note(made)
        return made

    setattr(call, _MARK, True)
    return call
