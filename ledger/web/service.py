"""What the handlers share: one record, made once per process, handed to each by FastAPI's dependencies.

Invariant: a handler reaches nothing but through this record, so a test makes one with clocks of its own.
"""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry

from ledger import limits
from ledger.booking import Booking
from ledger.live import Live
from ledger.metrics import Metrics
from ledger.warmth import Warmth
from ledger.web.access import Gate, Rates
from ledger.web.bodies import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ledger.config import Settings
    from ledger.store.database import Database

T = TypeVar("T")


KEPT_TIMES = 10
"""How many times as long as it took to make an answer is kept: whoever asks, one kind takes a tenth of a core."""


class Kept(Generic[T]):
    """Answers kept for a while, so that many pages cost as much as one; made once however many ask at a time.

    Who asks while one is made anew gets the one before.
    """

    def __init__(self, *, seconds: float, most: int, clock_s: Callable[[], float]) -> None:
        self._seconds = seconds
        self._most = most
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, float, T]] = {}
        """When it was made, how long that took, and the answer."""
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], T], *, seconds: float | None = None) -> T:
        """What was made for ``key``, by now ``seconds`` old at most (more where it took long to make), or made now."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        before = self._kept.get(key)
        if not making.acquire(blocking=before is None):
            assert before is not None
            return before[2]
        try:
            found = self._kept.get(key)
            began_s = self._clock_s()
            if found is not None:
                at_s, took_s, kept = found
                if began_s - at_s < max(self._seconds if seconds is None else seconds, KEPT_TIMES * took_s):
                    return kept
            made = make()
            with self._lock:
                ended_s = self._clock_s()
                self._kept[key] = (ended_s, ended_s - began_s, made)
                while len(self._kept) > self._most:
                    oldest = min(self._kept, key=lambda key: self._kept[key][0])
                    del self._kept[oldest]
                    self._making.pop(oldest, None)
            return made
        finally:
            making.release()

    def forget(self) -> None:
        """Make everything anew when it is next asked for."""
        with self._lock:
            self._kept.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process of the service."""

    settings: Settings
    database: Database
    metrics: Metrics
    live: Live
    booking: Booking
    gate: Gate
    reads: Rates
    refusals: Rates
    registry: CollectorRegistry
    clock_us: Callable[[], int]
    clock_s: Callable[[], float]
    kept: Kept[Any]
    room: Room = field(default_factory=lambda: Room(limits.BODIES_BYTES_MAX))
    """For bodies of batches."""
    ingests: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(limits.INGESTS_MAX))
    warmth: Warmth = field(default_factory=Warmth)
    job_outcomes: dict[str, str] = field(default_factory=dict)
    """How each job's last run ended, by the job's name (:mod:`ledger.jobs`)."""

    def failed_jobs(self) -> list[str]:
        """Jobs whose last run ended with an exception."""
        return sorted(name for name, outcome in dict(self.job_outcomes).items() if outcome == "failed")


KEPT_S = 5.0
"""How old an answer of the JSON interface may be: a page asks every 5 s, and facts come every 15."""

KEPT_MAX = 64
"""Answers that are kept; the largest are some hundred kilobytes."""


def make_service(
    settings: Settings,
    database: Database,
    *,
    key: bytes,
    clock_us: Callable[[], int],
    clock_s: Callable[[], float],
    registry: CollectorRegistry | None = None,
) -> Service:
    """A service on an open database; ``key`` signs logins."""
    metrics = Metrics()
    registry = registry or CollectorRegistry()
    registry.register(metrics)
    return Service(
        settings=settings,
        database=database,
        metrics=metrics,
        live=Live(metrics),
        booking=Booking(database, clock_us),
        gate=Gate(database, key, clock_us=clock_us, clock_s=clock_s),
        reads=Rates(per_s=limits.READS_PER_S, burst=limits.READS_BURST, clock_s=clock_s),
        refusals=Rates(per_s=limits.REFUSALS_PER_S, burst=limits.REFUSALS_BURST, clock_s=clock_s),
        registry=registry,
        clock_us=clock_us,
        clock_s=clock_s,
        kept=Kept(seconds=KEPT_S, most=KEPT_MAX, clock_s=clock_s),
    )


def settle_memory() -> None:
    """Tell the collector what it need not look at; once, when the process is about to serve.

    Facts are trees without cycles, and counting alone frees them; by default a batch of 256 sessions makes the
    collector look at all that the process has every few batches, which takes as long as reading them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    found = request.app.state.service
    assert isinstance(found, Service)
    return found


async def _service(request: Request) -> Service:
    # A coroutine function, or FastAPI would ask a thread for it.
    return service_of(request)


Here = Annotated[Service, Depends(_service)]
"""The service, as a handler's parameter."""
