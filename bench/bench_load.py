"""One service under the load of a fleet: engines with 100 sessions each, and somebody who looks at it meanwhile.

`kvledger serve` as it is, on SQLite, in a process of its own, its jobs included. Every engine has a connection and a
boot; at each multiple of 15 s all of them deliver at the same moment (hooks cut their periods there, and spread what
they send; here nobody spreads). Two of an engine's hundred sessions end each period and two new ones come. From another
thread, a page is read about once a second: tenants of the last hour, live sessions, the month's statement, engines,
/metrics. One GPU for each engine is registered, so hours that are over are settled while all this goes on.

When it is over, the ledger is audited as it stands. Memory is judged in runs of an hour and more.

    python -m bench.bench_load [--engines 200] [--minutes 10] [--quick] [--json FILE]
"""

from __future__ import annotations

import http.client
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from batches import BLOCKS, Life  # noqa: E402 - after the path is set

from bench.bench_scrape import Process, served  # noqa: E402
from bench.figures import Figure, command, tell  # noqa: E402
from bench.served import Line, request  # noqa: E402
from ledger.commands.opening import fit_terms  # noqa: E402
from ledger.config import load  # noqa: E402
from ledger.core.periods import HOUR_US  # noqa: E402
from ledger.core.records import PERIOD_US, Dimensions, Origin  # noqa: E402
from ledger.pricebook import Asset, Assignment, Price  # noqa: E402
from ledger.store import migrate, prices  # noqa: E402
from ledger.store.database import connect  # noqa: E402
from ledger.store.tokens import Scope, add_token  # noqa: E402

if TYPE_CHECKING:
    from ledger.store.database import Database

SESSIONS, TENANTS = 100, 40
TURNOVER = 2
"""Sessions of an engine that end, and that begin, each period."""

REQUESTS = 8
"""That end in each period of an engine."""

PERIOD_S = PERIOD_US / 1e6
READ_EVERY_S = 1.0
READS = ("/v1/usage?by=tenant&from={hour}", "/v1/live", "/v1/statements/current", "/v1/engines", "/metrics")

GROWTH_MAX = 1.10
"""Of memory, from the second quarter of an hour to its last."""

LATE_S = PERIOD_S / 3
"""In which a burst of all engines is to be booked: well before the next."""


class Engine:
    """What one engine sends: a lawful batch for every period, of sessions that come and go."""

    def __init__(self, number: int, start_us: int) -> None:
        self._number = number
        self._life = Life(engine=f"engine-{number}", boot_id=f"boot-{start_us}", start_us=start_us, origin=Origin.LIVE)
        self._oldest = 0

    def next(self) -> bytes:
        first = self._life.seq == 0
        sessions = range(self._oldest, self._oldest + SESSIONS)
        self._oldest += TURNOVER
        # Those that end leave nothing cached behind.
        held = {self._dims(session): (BLOCKS // SESSIONS // 2, int(session >= self._oldest)) for session in sessions}
        names = [f"{self._number}-{self._life.seq}-{place}" for place in range(REQUESTS)]
        return self._life.send(self._life.period(held, opens=first, standing=first, admits=names, ends=names))

    def _dims(self, session: int) -> Dimensions:
        tenant = (self._number + session) % TENANTS
        return Dimensions(tenant=f"tenant-{tenant}", session=f"{self._number}-{session}", model="m", scenario="chat")


class Readers(threading.Thread):
    """Somebody who looks, until :meth:`stop`; ``taken_s`` by what was asked for."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self.taken_s: dict[str, list[float]] = defaultdict(list)
        self.failed: list[str] = []
        self._port, self._token = port, token
        self._over = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self._over.wait(READ_EVERY_S):
            path = READS[turn % len(READS)]
            turn += 1
            began = time.perf_counter()
            try:
                status, body = self._get(path)
            except OSError as error:
                self.failed.append(f"{path}: {error!r}")
                continue
            self.taken_s[path.partition("?")[0]].append(time.perf_counter() - began)
            if status != 200:
                self.failed.append(f"{status} {body[:200]!r}")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600))
        try:
            connection.request("GET", path.format(hour=hour), headers={"Authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self._over.set()
        self.join(90)


def prepare(database: Database, engines: int, now_us: int) -> tuple[str, str]:
    """A ledger with a GPU for each engine, paid from the hour on; the tokens of engines and of a reader."""
    migrate.upgrade(database)
    hour_us = now_us - now_us % HOUR_US
    settings = load(environ={})

    def work(c: Any) -> tuple[str, str]:
        fit_terms(c, settings, at_us=now_us)
        prices.add_price(c, Price(nanos_per_hour=2_950_000_000, valid_from_us=hour_us), currency="USD", now_us=now_us)
        for number in range(engines):
            gpu = f"gpu-{number}"
            prices.add_asset(c, Asset(asset_id=gpu, uuid=gpu, model="H100", valid_from_us=hour_us), now_us=now_us)
            held = Assignment(asset_id=gpu, engine=f"engine-{number}", valid_from_us=hour_us)
            prices.assign(c, held, now_us=now_us)
        return (
            add_token(c, name="engines", scope=Scope.INGEST, secret=b"s" * 32, now_us=now_us),
            add_token(c, name="reader", scope=Scope.READ, secret=b"r" * 32, now_us=now_us),
        )

    return database.write(work)


class Load:
    """All engines, each on a connection of its own, at every period's end until :meth:`run` has had its rounds."""

    def __init__(self, service: Process, token: str) -> None:
        self._service, self._token = service, token
        self.latencies_s: list[float] = []
        self.bursts_s: list[float] = []
        """From a period's end until the last engine is answered."""
        self.rss_mib: list[float] = []
        self.cpu_s: list[float] = []
        self.late = 0
        """Rounds in which this load itself was not ready at the period's end."""

    def run(self, engines: int, rounds: int) -> None:
        now_us = time.time_ns() // 1000
        due_us = now_us - now_us % PERIOD_US + PERIOD_US
        fleet = [Engine(number, due_us - PERIOD_US) for number in range(engines)]
        port = int(self._service.url.rpartition(":")[2])
        with selectors.DefaultSelector() as selector:
            lines = [Line(port, iter(())) for _ in fleet]
            for line in lines:
                selector.register(line.socket, selectors.EVENT_READ, line)
            for _ in range(rounds):
                ready = [request(self._token, engine.next()) for engine in fleet]
                left_s = due_us / 1e6 - time.time()
                self.late += left_s < 0
                time.sleep(max(0.0, left_s))
                self._burst(selector, lines, ready)
                self.rss_mib.append(self._service.rss_mib())
                self.cpu_s.append(self._service.cpu_s())
                due_us += PERIOD_US

    def _burst(self, selector: selectors.BaseSelector, lines: list[Line], ready: list[bytes]) -> None:
        began = time.perf_counter()
        for line, whole in zip(lines, ready, strict=True):
            line.put(whole)
        left = len(lines)
        while left:
            for key, _ in selector.select(60):
                if key.data.answered():
                    self.latencies_s.append(time.perf_counter() - key.data.sent_s)
                    left -= 1
        self.bursts_s.append(time.perf_counter() - began)


def measure(engines: int, rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'books.db'}"
        database = connect(url)
        senders, reader = prepare(database, engines, time.time_ns() // 1000)
        database.close()
        with served(folder, url) as service:
            readers = Readers(int(service.url.rpartition(":")[2]), reader)
            load = Load(service, senders)
            readers.start()
            load.run(engines, rounds)
            readers.stop()
        size = (folder / "books.db").stat().st_size
        audited = subprocess.run(
            [sys.executable, "-m", "ledger", "audit", "--database", url],
            check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    if audited.returncode:
        print(audited.stdout)
    return [Figure(name="engines that deliver at the same moment, every 15 s", value=engines, unit=""),
            *_of_load(load), *_of_memory(load), *_of_readers(readers),
            Figure(name="database, a batch", value=size / len(load.latencies_s) / 1024, unit="KiB"),
            Figure(name="exit status of the audit afterwards", value=audited.returncode, unit="", limit=0)]  # fmt: skip


def _at(values: list[float], quantile: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * quantile))]


def _of_load(load: Load) -> list[Figure]:
    spent_s = load.cpu_s[-1] - load.cpu_s[0]
    over_s = max(1, len(load.cpu_s) - 1) * PERIOD_S
    return [
        Figure(name="minutes", value=len(load.bursts_s) * PERIOD_S / 60, unit=""),
        Figure(name="batches answered, all of them taken", value=len(load.latencies_s), unit=""),
        Figure(name="periods for whose end the load was late itself", value=load.late, unit=""),
        *[Figure(name=f"  a batch answered, p{q * 100:g}", value=_at(load.latencies_s, q) * 1e3, unit="ms")
          for q in (0.5, 0.95, 0.99, 1.0)],
        Figure(name="  all engines answered, median", value=median(load.bursts_s) * 1e3, unit="ms"),
        Figure(name="  all engines answered, the longest", value=max(load.bursts_s), unit="s", limit=LATE_S),
        Figure(name="service's CPU, of one core, its jobs included", value=spent_s / over_s * 100, unit="%"),
    ]  # fmt: skip


def _of_memory(load: Load) -> list[Figure]:
    quarter = max(1, len(load.rss_mib) // 4)
    before, after = median(load.rss_mib[quarter : 2 * quarter] or load.rss_mib), median(load.rss_mib[-quarter:])
    # A minute says nothing of an hour.
    limit = GROWTH_MAX if len(load.rss_mib) * PERIOD_S >= 3600 else None
    return [
        Figure(name="memory, first period", value=load.rss_mib[0], unit="MiB"),
        Figure(name="memory, second quarter", value=before, unit="MiB"),
        Figure(name="memory, last quarter", value=after, unit="MiB"),
        Figure(name="memory, last quarter over second", value=after / before, unit="x", limit=limit),
    ]


def _of_readers(readers: Readers) -> list[Figure]:
    figures = []
    for path, taken in readers.taken_s.items():
        figures += [
            Figure(name=f"GET {path}, p50", value=_at(taken, 0.5) * 1e3, unit="ms"),
            Figure(name=f"GET {path}, p99", value=_at(taken, 0.99) * 1e3, unit="ms"),
        ]
    for failed in readers.failed:
        print(failed)
    return [*figures, Figure(name="reads that failed", value=len(readers.failed), unit="", limit=0)]


if __name__ == "__main__":
    parser = command("bench_load", __doc__)
    parser.add_argument("--engines", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--minutes", type=float, default=10, metavar="N", help="default: 10; --quick: 45 s")
    options = parser.parse_args()
    periods = 3 if options.quick else int(options.minutes * 60 / PERIOD_S)
    sys.exit(tell(measure(options.engines, periods), options.json))
