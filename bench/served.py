"""A service in a process of its own, and engines that deliver to it from another: what benches of ingest are made of.

The load is one thread of one process with a connection for each engine; requests are made beforehand, and answers are
looked at no closer than their status and length, so that the load takes as little as can be of the CPUs that the
service is measured on.
"""

from __future__ import annotations

import gzip
import multiprocessing
import resource
import selectors
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from ledger import config, limits
from ledger.store import migrate
from ledger.store.database import connect
from ledger.store.tokens import Scope, add_token
from ledger.web.app import make_app
from ledger.web.listening import listen
from ledger.web.service import make_service, settle_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from multiprocessing.connection import Connection

SPAWN = multiprocessing.get_context("spawn")
PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has taken so far."""

    cpu_s: float
    """Of all its threads, the kernel's part included."""
    rss_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a load met."""

    seconds: float
    cpu_s: float
    latencies_s: list[float]


class Served:
    """A running service."""

    def __init__(self, port: int, token: str, told: Connection) -> None:
        self.port = port
        self.token = token
        self._told = told

    def usage(self) -> Usage:
        self._told.send("usage")
        return self._told.recv()


def usage() -> Usage:
    """Of this process."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(
        cpu_s=found.ru_utime + found.ru_stime,
        rss_bytes=int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES,
        peak_bytes=found.ru_maxrss * 1024,
    )


@contextmanager
def served(url: str, state: Path, *, now_us: int | None = None) -> Iterator[Served]:
    """A service on a new ledger at ``url``, as ``kvledger serve`` starts it but without jobs.

    ``now_us``: its clock stands there, and every batch is taken for one of now, whenever it ended.
    """
    database = connect(url)
    migrate.upgrade(database)
    token = database.write(lambda c: add_token(c, name="bench", scope=Scope.INGEST, secret=b"s" * 32, now_us=1))
    database.close()
    ours, theirs = SPAWN.Pipe()
    listener = listen("127.0.0.1", 0)
    child = SPAWN.Process(target=_serve, args=(url, str(state), listener, theirs, now_us))
    child.start()
    try:
        assert ours.poll(60), "the service did not start"
        assert ours.recv() == "ready"
        yield Served(listener.getsockname()[1], token, ours)
    finally:
        ours.send("stop")
        child.join(30)
        child.kill()
        listener.close()


def _serve(url: str, state: str, listener: socket.socket, told: Connection, now_us: int | None) -> None:
    if now_us is not None:
        limits.LIVE_AGE_US_MAX = limits.TIME_US_MAX
    settings = config.load(environ={"KVLEDGER_DATABASE": url, "KVLEDGER_STATE_DIR": state})
    service = make_service(
        settings,
        connect(url),
        key=b"k" * 32,
        clock_us=(lambda: now_us) if now_us is not None else (lambda: time.time_ns() // 1000),
        clock_s=time.monotonic,
    )
    server = uvicorn.Server(uvicorn.Config(make_app(service), log_level="error", lifespan="off", access_log=False))
    settle_memory()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    told.send("ready")
    while told.recv() == "usage":
        told.send(usage())
    server.should_exit = True
    thread.join()


def request(token: str, raw: bytes) -> bytes:
    """A whole POST of one batch."""
    body = gzip.compress(raw, 6)
    head = (
        f"POST /v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def deliver(service: Served, sent: list[list[bytes]]) -> Delivered:
    """Each engine's batches in order, the next when the one before is answered; all engines at the same time."""
    ours, theirs = SPAWN.Pipe()
    requests = [[request(service.token, raw) for raw in raws] for raws in sent]
    child = SPAWN.Process(target=_deliver, args=(service.port, requests, theirs))
    child.start()
    theirs.close()
    found = ours.recv()
    child.join(30)
    assert isinstance(found, Delivered), found
    return found


def _deliver(port: int, requests: list[list[bytes]], told: Connection) -> None:
    try:
        told.send(_driven(port, requests))
    except BaseException as error:
        told.send(repr(error))
        raise


def _driven(port: int, requests: list[list[bytes]]) -> Delivered:
    engines = [Line(port, own) for own in requests]
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        for engine in engines:
            selector.register(engine.socket, selectors.EVENT_READ, engine)
        began, cpu = time.perf_counter(), usage().cpu_s
        for engine in engines:
            engine.send()
        left = len(engines)
        while left:
            for key, _ in selector.select(60):
                engine = key.data
                if engine.answered():
                    latencies.append(time.perf_counter() - engine.sent_s)
                    left -= not engine.send()
        return Delivered(seconds=time.perf_counter() - began, cpu_s=usage().cpu_s - cpu, latencies_s=latencies)


class Line:
    """An engine's connection and what it has left to send."""

    def __init__(self, port: int, requests: Iterable[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = iter(requests)
        self._read = b""
        self.sent_s = 0.0

    def send(self) -> bool:
        """Send the next; False where there is none."""
        following = next(self._requests, None)
        if following is None:
            return False
        self.put(following)
        return True

    def put(self, whole: bytes) -> None:
        """Send this request."""
        self.sent_s = time.perf_counter()
        self.socket.sendall(whole)

    def answered(self) -> bool:
        """Read what came; whether an answer is there whole. AssertionError where a batch was not taken."""
        came = self.socket.recv(65536)
        assert came, "the service hung up"
        self._read += came
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return False
        lines: dict[bytes, Any] = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(lines[b"content-length"]):
            return False
        assert b" 200 " in head[:16], self._read
        self._read = b""
        return True
