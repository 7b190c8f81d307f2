"""vLLM's API server: tenants by header or API key, with no flag.

Invariants: an application that vLLM builds gets the middleware once, outside of all others; nothing of vLLM is imported
that the process does not have for its own sake.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from ledger.hook import settings
from ledger.hook.identity import Identity
from ledger.hook.vllm.callers import CallerMiddleware, Carrier
from ledger.hook.vllm.wrapping import wrap_once

if TYPE_CHECKING:
    from collections.abc import Callable

log: Final = logging.getLogger("kvledger.hook")

_APP_MODULE: Final = "vllm.entrypoints.launchers.app"
"""It calls ``init_entrypoints_middleware`` by a name of its own. Who serves has it before plugins are loaded."""


def attach() -> None:
    """Wrap what builds applications, where this process has it, and what makes core requests."""
    from vllm.v1.request import Request  # noqa: PLC0415 - the engine's, in its process alone

    found = settings.load(os.environ)
    carrier = Carrier(found.handover_key, Identity(found.trust))
    wrap_once(Request, "from_engine_core_request", _then(carrier.receive))
    app_module: Any = sys.modules.get(_APP_MODULE)
    if app_module is not None:
        wrap_once(app_module, "init_entrypoints_middleware", _middleware_too)


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
    wrap_once(InputProcessor, "process_inputs", _then(Carrier(found.handover_key, identity).send))
    app.add_middleware(CallerMiddleware, identity=identity)


def _middleware_too(init: Callable[..., None]) -> Callable[..., None]:
    def call(args: Any, app: Any, *rest: Any, **more: Any) -> None:
        init(args, app, *rest, **more)
        try:
            add_to(app)
        except Exception:
            log.exception("kvledger: no middleware for this server, so its requests are unattributed")

    return call


def _then(note: Callable[[Any], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Shows to ``note`` what a function makes, before it is returned."""

    def around(make: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            note(made)
            return made

        return call

    return around
