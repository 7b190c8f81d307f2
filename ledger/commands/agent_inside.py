"""The agent inside the service, on a machine that is both: its samples are booked here, without HTTP and a token.

Invariant: they go the way of any batch (encoded, checked, booked once, answered), from the outbox's own thread; where
the database does not take one it waits in memory and is tried again.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ledger import ingest
from ledger.collectors.agent import AgentLoop
from ledger.collectors.nvml import Nvml
from ledger.collectors.procfs import Pool, Processes
from ledger.commands.agent_settings import load_agent
from ledger.core.records import Origin
from ledger.errors import StoreError, UsageError
from ledger.ingest import Status
from ledger.metrics import WORKERS, WORKERS_BUSY, WORKERS_QUEUED
from ledger.outbox.drain import Outbox
from ledger.outbox.post import Reply, Unreachable
from ledger.store.receipt import origin_of
from ledger.wire import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.collectors.agent import Driver
    from ledger.web.service import Service

CLOSE_S = 3.0
LIBRARY = "libnvidia-ml.so.1"


class BookingPost:
    """Books where others post. Used by one thread, the outbox's."""

    name = "this service"

    def __init__(self, service: Service) -> None:
        self._service = service

    def __call__(self, payload: bytes, note: str) -> Reply:
        """See :class:`ledger.outbox.post.Post`."""
        del note
        service = self._service
        received_us = service.clock_us()
        try:
            outcome = ingest.accept(service.database, zlib.decompress(payload, wbits=31), received_us)
        except StoreError as error:
            raise Unreachable(str(error)) from error
        service.live.answered(outcome, received_us)
        if outcome.status is Status.REFUSED:
            assert outcome.refusal is not None
            return Reply(status=422, body=str(outcome.refusal).encode())
        receipt = answer.Receipt(outcome.status.value)
        return Reply(status=200, body=answer.encode(answer.Answer(status=receipt, service_time_us=service.clock_us())))

    def close(self) -> None:
        """There is nothing to let go of."""


def wanted(service: Service, choice: str, *, demo: bool) -> bool:
    """Whether an agent runs inside: as told, or by itself where there is a driver and the ledger is not simulated.

    Raises :class:`~ledger.errors.UsageError` where it was asked for and cannot be.
    """
    has_binding = importlib.util.find_spec("pynvml") is not None
    if choice == "on":
        if demo:
            raise UsageError("--agent on --demo: a ledger is simulated or live, and the demo's is simulated")
        if not has_binding:
            raise UsageError("--agent on needs NVIDIA's binding, pynvml: pip install nvidia-ml-py")
        return True
    if choice == "off" or demo or not has_binding or not _has_driver():
        return False
    with service.database.read() as connection:
        return origin_of(connection) is not Origin.SIMULATED


@contextmanager
def agent_inside(service: Service, *, driver: Callable[[], Driver] = Nvml) -> Iterator[str]:
    """An agent that runs until the end of the block; its name in the ledger."""
    settings = load_agent({name: value for name, value in os.environ.items() if name in _OF_THE_AGENT})
    processes = Processes(own=os.getpid(), names=settings.watch)
    outbox = Outbox([BookingPost(service)], None)
    loop = AgentLoop(settings.source, driver(), processes, outbox.emit, pools=lambda: _pools(service))
    stopping = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stopping,), name="agent", daemon=True)
    outbox.attach(loop)
    outbox.start()
    thread.start()
    try:
        yield settings.source.source_id
    finally:
        stopping.set()
        thread.join(CLOSE_S)
        outbox.close(CLOSE_S)


_OF_THE_AGENT = frozenset({
    "KVLEDGER_AGENT", "KVLEDGER_WATCH", "KVLEDGER_CLUSTER", "KVLEDGER_NAMESPACE", "KVLEDGER_POD", "KVLEDGER_HOST",
})  # fmt: skip
"""Where to report is here; the rest says who it is."""


def _pools(service: Service) -> dict[int, Pool]:
    """The threads that answer requests, as the last request that came or went saw them."""
    workers = int(service.metrics.value(WORKERS))
    if not workers:
        return {}
    busy, queued = (int(service.metrics.value(metric)) for metric in (WORKERS_BUSY, WORKERS_QUEUED))
    return {os.getpid(): Pool(workers=workers, busy=busy, queued=queued)}


def _has_driver() -> bool:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
