"""The service's answer to a batch: what became of it, the service's clock, back-pressure, and setpoints.

Invariants: an answer that decodes was written by a service of ours, so a sender may take it as the receipt
(a page of some proxy, status 200, is none); fields that a reader does not know are ignored, so either side
may be upgraded first. Refusals (4xx) are problem details (RFC 9457) and carry no answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ledger import limits


class Receipt(StrEnum):
    """What became of the batch; each is a success, and the sender may forget the batch."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """It was there already; nothing changed."""
    QUARANTINED = "quarantined"
    """Kept unread: its major version is not known here (202)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setpoints:
    """What the service wants of a hook that listens. ``revision`` grows with each change; 0: nothing is set."""

    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service says to a batch that it took."""

    status: Receipt
    service_time_us: int
    """The service's wall clock when it answered."""
    retry_after_ms: int | None = None
    """The time that the sender shall leave before the next batch; None: no need."""
    setpoints: Setpoints = Setpoints()


_STATUSES: Final = {word.value: word for word in Receipt}
_INT_MAX: Final = limits.INT_MAX


def encode(answer: Answer) -> bytes:
    """The answer as JSON, UTF-8."""
    document: dict[str, Any] = {
        "status": answer.status.value,
        "service_time_us": answer.service_time_us,
        "setpoints": {"revision": answer.setpoints.revision},
    }
    if answer.retry_after_ms is not None:
        document["retry_after_ms"] = answer.retry_after_ms
    return json.dumps(document, separators=(",", ":")).encode()


def decode(raw: bytes) -> Answer | None:
    """The answer in ``raw``; None where there is none: then the batch has no receipt. Never raises."""
    if len(raw) > limits.ANSWER_BYTES_MAX:
        return None
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    status, service_time_us = document.get("status"), _int(document.get("service_time_us"))
    if not isinstance(status, str) or status not in _STATUSES or service_time_us is None:
        return None
    setpoints = document.get("setpoints")
    revision = _int(setpoints.get("revision")) if isinstance(setpoints, dict) else None
    return Answer(
        status=_STATUSES[status],
        service_time_us=service_time_us,
        retry_after_ms=_int(document.get("retry_after_ms")),
        setpoints=Setpoints(revision=revision or 0),
    )


def _int(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _INT_MAX else None
