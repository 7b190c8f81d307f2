"""What the outbox costs the engine beside it, and what the spool costs over a plain file.

* **Wake-up.** A thread stands for the engine's: every 2 ms it wakes up and works for 0.1 ms. How late it wakes is
  measured alone (``alone``), with the drain settling, encoding, spooling and sending periods of 512 requests one after
  the other without a rest (``drain``; a real one works for a fraction of a second every 15 s), and with the same work
  done without slices (``unsliced``). The claim: with the drain, p99 is later than alone by at most 0.5 ms.
* **Append.** Batches of 20 kB into the spool without ``fsync``, against ``write`` of the same bytes to one file.

    python -m bench.bench_outbox [--quick] [--json FILE]

Exits 1 where a limit does not hold. Ways are interleaved; a round's p99 is compared with that of the same round, and
the median over the rounds counts, since other work on the machine wakes threads late as well. Beside it stands what
that does not disturb: the CPU time between two pauses of the drain thread. The service is a process of its own on
loopback.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.figures import Figure, main
from ledger import limits
from ledger.core.records import Batch, Boot, Dimensions, Group, Origin, Source
from ledger.hook.meter import Meter
from ledger.outbox.drain import Outbox
from ledger.outbox.post import HttpPost
from ledger.outbox.spool import Spool
from ledger.outbox.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

LATER_US_MAX = 500
"""Of the engine's wake-up at p99, with the drain over without it."""

APPEND_RATIO_MIN = 0.2
"""Appends a second, the spool's over a plain file's."""

RUNNING, SHARED, PRIVATE = 512, 64, 60
PERIODS = 40
EVERY_S, WORK_S = 0.002, 0.0001
T0 = 1_793_664_000_000_000

SERVICE = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ledger.wire.answer import Answer, Receipt, encode
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = encode(Answer(status=Receipt.ACCEPTED, service_time_us=1))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def metered(emit: Any) -> Meter:
    """A meter with ``PERIODS`` cut periods of a busy engine that wait to be settled."""
    source = Source(engine="engine", origin=Origin.SIMULATED)
    meter = Meter(source, Boot(boot_id=os.urandom(4).hex(), anchor_us=T0, started_us=T0), emit, settle_later=True)
    pool = meter.open(0, "gpu", blocks=RUNNING * PRIVATE + SHARED + 1, groups=[Group(block_size=16)], model="m")
    shared = range(SHARED)
    for i in range(RUNNING):
        name = f"request-{i}"
        dims = Dimensions(tenant=f"tenant-{i % 10}", session=f"session-{i:04}", model="m", scenario="chat")
        meter.request(i + 1, name, dims, prompt_tokens=(SHARED + PRIVATE) * 16 - 300)
        first = SHARED + i * PRIVATE
        own = range(first, first + PRIVATE)
        if i:
            pool.acquire(i + 1, name, 0, hit=shared, new=own)
        else:
            pool.acquire(i + 1, name, 0, new=[*shared, *own])
    step = {f"request-{i}": 1 for i in range(RUNNING)}
    for period in range(PERIODS):
        at = period * 15_000_000 + 10_000
        for n in range(3):
            meter.scheduled(at + n * 40_000, step, RUNNING)
            meter.stepped(at + n * 40_000 + 30_000)
    return meter


class Unsliced:
    """The same settling, and no pause in it."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.resend_standing = meter.resend_standing

    def settle(self, limit: int | None = None, **_: Any) -> int:
        return self._meter.settle(limit)


def late_us(seconds: float) -> list[float]:
    """How late the engine's thread wakes up, each time."""
    found = []
    due = time.perf_counter() + EVERY_S
    until = due + seconds
    while due < until:
        time.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
        found.append((now - due) * 1e6)
        while time.perf_counter() < now + WORK_S:
            pass
        due = max(due + EVERY_S, time.perf_counter())
    return found


class Pauses:
    """Pauses as the outbox makes them, and the CPU time of the thread between two."""

    def __init__(self) -> None:
        self.slice_us: list[float] = []
        self._last_s = 0.0

    def __call__(self) -> None:
        mine = threading.current_thread().name == "kvledger-drain"
        if mine and self._last_s:
            self.slice_us.append((time.thread_time() - self._last_s) * 1e6)
        time.sleep(limits.OUTBOX_PAUSE_S)
        if mine:
            self._last_s = time.thread_time()


def with_drain(seconds: float, port: int, pause: Callable[[], None], *, sliced: bool) -> tuple[list[float], int, int]:
    """Lateness, batches encoded, batches received."""
    encoded = [0]
    with tempfile.TemporaryDirectory() as folder:
        outbox = Outbox(
            [HttpPost(f"http://127.0.0.1:{port}", token=lambda: "t")],
            lambda tally: Spool(Path(folder), tally=tally),
            pause=pause,
        )

        def emit(batch: Batch) -> None:
            encoded[0] += 1
            outbox.emit(batch)

        meter = metered(emit)
        outbox.attach(meter if sliced else Unsliced(meter))
        slices = limits.OUTBOX_SLICE_ROWS
        if not sliced:
            limits.OUTBOX_SLICE_ROWS = limits.ROWS_MAX
        outbox.start()
        found = late_us(seconds)
        meter._boot.cuts.clear()  # noqa: SLF001 - what is left is not worth waiting for
        outbox.close(5.0)
        limits.OUTBOX_SLICE_ROWS = slices
        return found, encoded[0], sum(outbox.status.delivery.receipts.values())


def at(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _undisturbed() -> None:
    """What else runs on the machine shall not be measured: a real-time class, where we may have it."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def wake_up(rounds: int, seconds: float) -> list[Figure]:
    pauses = Pauses()
    late: dict[str, list[list[float]]] = {"alone": [], "drain": [], "unsliced": []}
    encoded = received = 0
    with subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        port = int(service.stdout.readline())
        _undisturbed()
        for _ in range(rounds):
            late["alone"].append(late_us(seconds))
            found, made, sent = with_drain(seconds, port, pauses, sliced=True)
            late["drain"].append(found)
            encoded, received = encoded + made, received + sent
            late["unsliced"].append(with_drain(seconds, port, lambda: None, sliced=False)[0])
        service.kill()
    p99 = {way: [at(found, 99) for found in runs] for way, runs in late.items()}
    later = {
        way: median(mine - alone for mine, alone in zip(p99[way], p99["alone"], strict=True))
        for way in ("drain", "unsliced")
    }
    return [
        Figure(name="wake-up of the engine's thread, alone, p99", value=median(p99["alone"]), unit="µs"),
        Figure(name="  with the drain at work without a rest, p99", value=median(p99["drain"]), unit="µs"),
        Figure(name="  later by", value=later["drain"], unit="µs", limit=LATER_US_MAX),
        Figure(name="  were the work not sliced, later by", value=later["unsliced"], unit="µs"),
        Figure(
            name="CPU of the drain thread between two pauses (system calls too), p50",
            value=at(pauses.slice_us, 50),
            unit="µs",
        ),
        Figure(name="  p99", value=at(pauses.slice_us, 99), unit="µs"),
        Figure(name=f"batches of {RUNNING} sessions encoded meanwhile", value=encoded, unit="", limit=1, least=True),
        Figure(name="  and received by the service", value=received, unit="", limit=1, least=True),
    ]


def append(rounds: int) -> list[Figure]:
    payload, count = os.urandom(20_000), 2_000
    rates: dict[str, list[float]] = {"plain": [], "spool": [], "fsync": []}
    for _ in range(rounds):
        for way, found in rates.items():
            with tempfile.TemporaryDirectory() as folder:
                times = 100 if way == "fsync" else count
                started = time.perf_counter()
                if way == "plain":
                    with (Path(folder) / "plain").open("wb", buffering=0) as stream:
                        for _ in range(times):
                            stream.write(payload)
                else:
                    spool = Spool(Path(folder), tally=Tally(), fsync=way == "fsync")
                    for _ in range(times):
                        assert spool.append(payload)
                    spool.close()
                found.append(times / (time.perf_counter() - started))
    middle = {way: median(values) for way, values in rates.items()}
    ratio = middle["spool"] / middle["plain"]
    return [
        Figure(name="appends of 20 kB to a plain file", value=middle["plain"], unit="/s"),
        Figure(name="  to the spool", value=middle["spool"], unit="/s"),
        Figure(name="  the spool's share of a plain file's", value=ratio, unit="", limit=APPEND_RATIO_MIN, least=True),
        Figure(name="  to the spool with fsync", value=middle["fsync"], unit="/s"),
    ]


def measure(quick: bool) -> list[Figure]:
    return wake_up(3 if quick else 15, 1.0) + append(3 if quick else 7)


if __name__ == "__main__":
    sys.exit(main("bench_outbox", __doc__, measure))
