"""The hook for vLLM: it attaches itself, in every process of the engine, through vLLM's plugin entry points.

Invariants: a guest. Nothing here raises into the engine, blocks it or changes what it answers; what goes wrong is
counted, told once, and after a few times the hook lets go (:mod:`ledger.hook.vllm.guard`). vLLM says that its scheduler
is no public interface, so the hook attaches to the versions that it was tested with, and to no other.

Importing this loads neither vLLM nor anything outside the standard library. What is attached where: docs/vllm.md.
"""

from __future__ import annotations

import logging
import time
from importlib import import_module
from typing import Final

log: Final = logging.getLogger("kvledger.hook")

SUPPORTED: Final = ("0.32",)
"""vLLM's release series that the hook was tested with; it attaches to no other."""

_PARTS: Final = ("scheduler", "sleep", "ending", "frontend", "workers")
"""Modules with an ``attach()``, each for the processes that it finds itself in."""

started_mono_ns = time.monotonic_ns()
"""When this process began to be an engine's, as near as a plugin can tell."""

_registered = False


def register() -> None:
    """Attach what belongs into this process: vLLM's ``vllm.general_plugins`` entry point. Never raises."""
    global _registered, started_mono_ns  # noqa: PLW0603 - once for a process, whoever calls
    if _registered:
        return
    _registered = True
    started_mono_ns = time.monotonic_ns()
    try:
        _log_as_vllm_does()
        _attach_all()
    except Exception:
        log.exception("kvledger: the hook could not attach; the engine goes on without it")


def _attach_all() -> None:
    from ledger.hook import settings  # noqa: PLC0415 - an engine that does not want the hook does not load it

    found = settings.load_or_off()
    if not found.enabled:
        return
    from vllm.version import __version__ as version  # noqa: PLC0415 - importing the hook does not load vLLM

    if not is_supported(version):
        # Every process of the engine comes here; the first one speaks for those that it starts.
        log.log(
            logging.WARNING if settings.is_first_process() else logging.DEBUG,
            "kvledger: vLLM %s is not among the versions that the hook was tested with (%s); it does not attach, "
            "and the engine is untouched",
            version,
            ", ".join(f"{series}.*" for series in SUPPORTED),
        )
        return
    for part in _PARTS:
        try:
            import_module(f"{__name__}.{part}").attach()
        except Exception:
            log.exception("kvledger: %s could not attach; the engine goes on without it", part)


def _log_as_vllm_does() -> None:
    """Let our lines go where vLLM's go, and in their form, unless somebody has set up ours.

    vLLM 0.32 sets up a logger of its own, after plugins are loaded, and one of its endpoints (SageMaker's) has the root
    take nothing but errors.
    """
    ours = logging.getLogger("kvledger")
    if not ours.handlers:
        ours.parent = logging.getLogger("vllm")
        ours.setLevel(ours.level)  # which forgets the levels that it had from its parent before


def is_supported(version: str) -> bool:
    """Whether ``version`` is of a series that the hook was tested with."""
    return any(version == series or version.startswith((f"{series}.", f"{series}+")) for series in SUPPORTED)
