"""One service, 200 scraped engines and 200 agents, on the loopback: is anybody late because of anybody else?

`kvledger serve` as it is, on SQLite, in a process of its own. Of the engines 170 answer at once with the 47 kB of a
vLLM, 10 after 3 s, 12 never, 8 with garbage. First they are scraped alone, then 200 agents deliver samples of two GPUs
with four processes each, every 15 s, from one thread of the bench. What is measured: when each engine was asked (seen
from the engine's side), the records that came of it, and the service's CPU and memory, from the kernel. The engines and
the agents take CPU of the same machine, and others may: times when a thread of the service or of the engines waited
100 ms for a CPU are left out of what is judged, and counted.

    python -m bench.bench_scrape [--quick] [--json FILE]
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from sampled import GIB, AgentLife  # noqa: E402 - after the path is set

from bench.figures import Figure, main  # noqa: E402
from bench.scrape_fleet import ENGINES, GARBAGE, HANGING, SLOW, WELL, kind_of  # noqa: E402
from bench.served import request  # noqa: E402
from bench.starved import Starved  # noqa: E402
from ledger.core.records import Origin  # noqa: E402
from ledger.core.samples import Gpu  # noqa: E402
from ledger.store import migrate, scrapes  # noqa: E402
from ledger.store.database import connect  # noqa: E402
from ledger.store.tokens import Scope, add_token  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERVAL_S = 15.0
AGENTS = 200
WARM_S = 25.0
"""For the service to start and to take the targets up."""

OFF_S = 1.0
"""A fifteenth of the interval: what scrapes of an engine that answers may be off by, 99 times in 100."""

SETTLES_S = 0.5
"""How long it may take after such a moment until all that waited is done."""

FAIR_LEAST = 0.2
"""Of the intervals; with fewer than these the bench has judged nothing, and says so."""

US = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """A `kvledger serve` and what the kernel says of it."""

    def __init__(self, child: subprocess.Popen[str], url: str) -> None:
        self.child, self.url = child, url

    def cpu_s(self) -> float:
        stat = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            return answer.read().decode()


@contextmanager
def served(folder: Path, database: str) -> Iterator[Process]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KVLEDGER_STATE_DIR": str(folder), "KVLEDGER_DATABASE": database}
    environ["KVLEDGER_LISTEN"] = "127.0.0.1:0"
    child = subprocess.Popen(
        [sys.executable, "-m", "ledger", "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    )
    try:
        assert child.stdout is not None
        lines = iter(child.stdout)
        url = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        yield Process(child, url)
    finally:
        child.terminate()
        child.wait(60)


@dataclass
class Seen:
    """The engines, and once it is over when each was asked; `time.monotonic`, s."""

    port: int
    pid: int
    asked: dict[int, list[float]] = field(default_factory=dict)


@contextmanager
def fleet(seconds: float) -> Iterator[Seen]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.scrape_fleet", str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    seen = Seen(port=int(child.stdout.readline()), pid=child.pid)
    try:
        yield seen
    finally:
        child.stdin.close()
        seen.asked = {int(number): times for number, times in json.loads(child.stdout.readline()).items()}
        child.wait(30)


class Agents(threading.Thread):
    """200 agents on one thread: each delivers a period every 15 s, spread over it, on a connection of its own."""

    def __init__(self, port: int, token: str, seconds: float) -> None:
        super().__init__(daemon=True)
        self.seconds = seconds
        self.latencies_s: list[float] = []
        self.refused = 0
        now_us = time.time_ns() // 1000
        start_us = now_us - now_us % (15 * US) - 15 * US
        self._lives = [
            AgentLife(source_id=f"agent:h{number}", boot_id=f"life-{start_us}", start_us=start_us, origin=Origin.LIVE)
            for number in range(AGENTS)
        ]
        self._token = token
        self._connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in self._lives]

    def run(self) -> None:
        began = time.monotonic()
        for turn in range(int(self.seconds / INTERVAL_S)):
            for number, life in enumerate(self._lives):
                due = began + turn * INTERVAL_S + number * INTERVAL_S / AGENTS
                time.sleep(max(0.0, due - time.monotonic()))
                self._deliver(number, life, first=turn == 0)

    def _deliver(self, number: int, life: AgentLife, *, first: bool) -> None:
        uuids = [f"GPU-{number}-{place}" for place in range(2)]
        gpus = [Gpu(uuid=uuid, model="H100", memory_bytes=80 * GIB) for uuid in uuids] if first else None
        used = {uuid: {1000 + place: (place + 1) * GIB for place in range(4)} for uuid in uuids}
        _, _, body = request(self._token, life.send(life.period(used, gpus=gpus))).partition(b"\r\n\r\n")
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Content-Encoding": "gzip",
        }
        began = time.perf_counter()
        connection = self._connections[number]
        connection.request("POST", "/v1/batches", body=body, headers=headers)
        answer = connection.getresponse()
        answer.read()
        self.latencies_s.append(time.perf_counter() - began)
        self.refused += answer.status != 200


def measure(quick: bool) -> list[Figure]:
    phase_s = 60.0 if quick else 180.0
    figures = [Figure(name="load average when it began", value=os.getloadavg()[0], unit="")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'books.db'}"
        database = connect(url)
        migrate.upgrade(database)
        token = database.write(lambda c: add_token(c, name="bench", scope=Scope.INGEST, secret=b"s" * 32, now_us=1))
        with fleet(WARM_S + 2 * phase_s + 120) as engines, served(folder, url) as service:
            for number in range(ENGINES):
                database.write(
                    lambda c, n=number: scrapes.add_target(
                        c,
                        engine=f"engine-{n}",
                        url=f"http://127.0.0.1:{engines.port}/{n}/metrics",
                        kind="auto",
                        now_us=1,
                    )
                )
            time.sleep(WARM_S)
            starved = Starved(service.child.pid, engines.pid)
            starved.start()
            marks = [(time.monotonic(), service.cpu_s(), service.rss_mib())]
            time.sleep(phase_s)
            marks.append((time.monotonic(), service.cpu_s(), service.rss_mib()))
            agents = Agents(int(service.url.rpartition(":")[2]), token, phase_s)
            agents.start()
            time.sleep(phase_s)
            marks.append((time.monotonic(), service.cpu_s(), service.rss_mib()))
            agents.join(60)
            starved.stop()
            told = service.metrics()
        figures += _from_engines(engines.asked, starved.spans, marks[0][0], 2 * phase_s)
        figures += _from_metrics(told)
        figures += _from_kernel(marks, agents)
        with database.read() as connection:
            now_us = time.time_ns() // 1000
            found = scrapes.scraped_between(connection, now_us - 3600 * US, now_us)
        covered_s = [sum(r.end_us - r.start_us for r in rows) / US for rows in found.values()]
        figures.append(Figure(name="engines with records", value=len(found), unit="", limit=WELL + SLOW, least=True))
        figures.append(
            Figure(name="watched time of engines that answer, most less least", value=max(covered_s) - min(covered_s),
                   unit="s", limit=2 * INTERVAL_S)
        )  # fmt: skip
        size = (folder / "books.db").stat().st_size
        records = sum(len(rows) for rows in found.values())
        figures.append(Figure(name="records", value=records, unit=""))
        figures.append(Figure(name="database, all that was written", value=size / 2**20, unit="MiB"))
        database.close()
    return figures


def _from_engines(
    asked: dict[int, list[float]], starved: list[tuple[float, float]], from_s: float, seconds: float
) -> list[Figure]:
    """How regularly engines were asked, as they saw it themselves, in the seconds after ``from_s``."""
    without_s = sum(end_s - start_s for start_s, end_s in starved)
    figures = [Figure(name="the machine gave service or engines no CPU, of the time", value=without_s / seconds * 100,
                      unit="%")]  # fmt: skip

    def on_time(at_s: float) -> bool:
        return not any(start_s <= at_s <= end_s + SETTLES_S for start_s, end_s in starved)

    for kind, count in (("well", WELL), ("slow", SLOW), ("hanging", HANGING), ("garbage", GARBAGE)):
        # The first time comes whenever the target was taken up.
        ours = [[at_s for at_s in asked[n] if from_s < at_s <= from_s + seconds] for n in asked if kind_of(n) == kind]
        gaps = [(a, b) for times in ours for a, b in pairwise(times)]
        off = sorted(abs(b - a - INTERVAL_S) for a, b in gaps)
        fair = sorted(abs(b - a - INTERVAL_S) for a, b in gaps if on_time(a) and on_time(b))
        name = f"{count} {kind} engines: interval off 15 s,"
        figures.append(Figure(name=f"{name} median", value=median(off) * 1000, unit="ms"))
        figures.append(Figure(name=f"{name} p99", value=off[int(len(off) * 0.99)] * 1000, unit="ms"))
        figures.append(Figure(name=f"{name} most", value=off[-1] * 1000, unit="ms"))
        if fair:
            limit = OFF_S * 1000 if kind == "well" else None
            p99 = fair[int(len(fair) * 0.99)] * 1000
            figures.append(Figure(name=f"{name} p99 where there was CPU", value=p99, unit="ms", limit=limit))
        least = FAIR_LEAST if kind == "well" else None
        figures.append(
            Figure(name=f"{name} judged so, of all", value=len(fair) / len(gaps), unit="", limit=least, least=True)
        )
        due = seconds / INTERVAL_S * count
        done = sum(map(len, ours))
        least = 0.98 if kind == "well" else None
        figures.append(
            Figure(name=f"{count} {kind} engines: asked, of the times due", value=min(1.0, done / due), unit="",
                   limit=least, least=True)
        )  # fmt: skip
    return figures


def _from_metrics(told: str) -> list[Figure]:
    counts: dict[str, float] = {}
    for outcome, value in re.findall(r'^kvledger_scrapes_total\{.*outcome="(\w+)"\} (\S+)', told, re.MULTILINE):
        counts[outcome] = counts.get(outcome, 0) + float(value)
    buckets = re.findall(r'^kvledger_scrape_late_seconds_bucket\{le="([^"]+)"\} (\S+)', told, re.MULTILINE)
    whole = float(buckets[-1][1])
    late = next(float(bound) for bound, below in buckets if float(below) >= 0.99 * whole)
    # Slow ones wait for each other, so this one has no limit.
    figures = [Figure(name="from due to begun, all of them, p99 (a bucket's bound)", value=late * 1000, unit="ms")]
    return figures + [Figure(name=f"scrapes: {name}", value=n, unit="") for name, n in sorted(counts.items())]


def _from_kernel(marks: list[tuple[float, float, float]], agents: Agents) -> list[Figure]:
    figures = []
    for (at_s, cpu_s, _), (then_s, then_cpu_s, _), what in zip(
        marks, marks[1:], ("alone", "with 200 agents"), strict=False
    ):
        share = (then_cpu_s - cpu_s) / (then_s - at_s)
        figures.append(
            Figure(name=f"service's CPU, of one core, scraping {what}", value=share * 100, unit="%", limit=50.0)
        )
    figures.append(Figure(name="service's memory after the start", value=marks[0][2], unit="MiB"))
    figures.append(Figure(name="service's memory at the end", value=marks[-1][2], unit="MiB", limit=256.0))
    latencies = sorted(agents.latencies_s)
    figures.append(Figure(name="batches of agents", value=len(latencies), unit=""))
    figures.append(Figure(name="of these refused", value=agents.refused, unit="", limit=0.0))
    figures.append(Figure(name="an agent's delivery, median", value=median(latencies) * 1000, unit="ms"))
    figures.append(
        Figure(name="an agent's delivery, p99", value=latencies[int(len(latencies) * 0.99)] * 1000, unit="ms")
    )
    return figures


if __name__ == "__main__":
    sys.exit(main("bench_scrape", __doc__, measure))
