"""The hook inside vLLM: a general plugin, called at the start of each of its processes.

Invariants: :func:`register` never raises and changes nothing where the hook is switched off (``KVLEDGER_ENABLED=0``)
or vLLM is of a version that was not tested (:data:`SUPPORTED`); called again it does nothing more. Importing this
loads neither vLLM nor anything else.
"""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("kvledger.vllm")

SUPPORTED: Final = ("0.32",)
"""The versions, as MAJOR.MINOR, that the suite runs against. vLLM says that what we hold on to is not public."""

_state = {"registered": False}


def register() -> None:
    """Attach to this process of vLLM, whichever it is. Never raises."""
    if _state["registered"]:
        return
    _state["registered"] = True
    try:
        _attach()
    except Exception:
        log.exception("kvledger could not attach itself to vLLM; the engine runs on without it")


def _attach() -> None:
    import vllm  # noqa: PLC0415 - importing the hook does not load vLLM

    from ledger.hook import settings  # noqa: PLC0415

    if not settings.load_or_off().enabled:
        return
    found = str(vllm.__version__)
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        log.warning(
            "kvledger does not attach itself: this is vLLM %s, and it was tested with %s only; see docs/vllm.md",
            found,
            ", ".join(f"{version}.x" for version in SUPPORTED),
        )
