"""Whom a request of the engine core belongs to: what the middleware signed, as it arrives in ``Request.session_id``."""

from __future__ import annotations

from typing import Any

from ledger.hook.identity import Caller, unpack


def caller_of(request: Any, key: bytes) -> Caller:
    """The caller that the middleware handed over with the same key; ``unattributed`` for everything else."""
    text = request.session_id
    return (unpack(text, key) if text else None) or Caller()
