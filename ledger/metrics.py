"""Every Prometheus metric, declared once; the values of one process; and docs/metrics.md, made of the declarations.

Invariants: a metric that is not declared cannot be written; names have the prefix ``kvledger_``, base units and no
colons; a metric has a bounded number of series (beyond, label values become ``other``, so that sums stay whole);
a histogram is only ever added to, so any two can be merged. The collector protocol and the private registry are
prometheus_client's own advice; money here is for graphs and alerts, exact figures are in the books.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from ledger import limits, metrics_gpu, metrics_scraped
from ledger.metric import ENGINES, LATENCY_S, Kind, Labels, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.core import Metric as Family

OTHER: Final = "other"
"""The label value of what is beyond a metric's bound of series."""

EXEMPLAR_CHARS_MAX: Final = 100
"""Of the id in an exemplar: OpenMetrics allows 128 characters for names and values together."""

LENGTH_TOKENS: Final = (128.0, 512.0, 1000.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0, 1048576.0)
"""8K is 8 192 tokens; the share of longer requests is a rule's business."""

STEP_S: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
"""From the scheduling of a small step to the prefill of a long prompt."""
STEP_REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
LAG_S: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 600.0, 3600.0, 21600.0, 86400.0)
JOB_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)

_FAMILY: Final = 64  # scenarios times priorities, more than people look at

# --- engines: from the live batches that this process took -------------------------------------------------

STEP_LATENCY = Metric(
    name="kvledger_engine_step_latency_seconds", kind=Kind.HISTOGRAM, labels=("engine", "phase", "shard", "method"),
    buckets=STEP_S, bound=ENGINES * 16,
    about="Time of an engine's steps by phase, from the histograms of its hook. `total`: a whole step, which never "
    "overlaps the next. Of the engine: `schedule`, `update`, `wait` (the gap between two steps while "
    "requests were there to run), without shard. Of each rank: `execute`, of that `communication` (collectives and "
    "waiting for other ranks), and `compute`, the rest. `method` says how: `wall`, `cuda_events`, `sampled`, "
    "`modelled`. What an engine cannot time is absent. Here as in all histograms that come from hooks a value is "
    "placed by the middle of the hook's bucket, which is within 3.2 % of it; sums are exact.",
)  # fmt: skip
STEP_REQUESTS_SCHEDULED = Metric(
    name="kvledger_engine_step_requests", kind=Kind.HISTOGRAM, labels=("engine",), buckets=STEP_REQUESTS,
    bound=ENGINES, about="Requests scheduled in a step: how batches are composed, from the histograms of the hook.",
)  # fmt: skip
KV_UTILIZATION = Metric(
    name="kvledger_kv_cache_utilization_ratio", kind=Kind.GAUGE, labels=("engine", "pool", "shard"),
    bound=ENGINES * 8,
    about="Active block time over block time in the pool's last period: its mean use. Ranks share block ids, so "
    "every shard of a pool has the pool's figure.",
)  # fmt: skip
KV_BLOCKS = Metric(
    name="kvledger_kv_cache_blocks", kind=Kind.GAUGE, labels=("engine", "pool", "shard", "state"), bound=ENGINES * 24,
    about="Blocks at the end of the pool's last period by state: `active` (somebody holds it), `cached` (nobody "
    "holds it, its content can be used again), `free`.",
)  # fmt: skip
ENGINE_HEARD = Metric(
    name="kvledger_engine_last_period_timestamp_seconds", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES,
    about="End of the newest period that the engine delivered, in its own wall time.",
)  # fmt: skip
ENGINE_SKEW = Metric(
    name="kvledger_engine_clock_skew_seconds", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES,
    about="The engine's wall time less its system clock, as it reports.",
)  # fmt: skip
ENGINE_STEPS = Metric(
    name="kvledger_engine_steps_total", kind=Kind.COUNTER, labels=("engine",), bound=ENGINES,
    about="Steps that ended.",
)  # fmt: skip
ENGINE_STEP_TIME = Metric(
    name="kvledger_engine_step_seconds_total", kind=Kind.COUNTER, labels=("engine",), bound=ENGINES,
    about="Time of steps, never overlapping: its rate is how busy the engine's compute is.",
)  # fmt: skip
ENGINE_TOKENS = Metric(
    name="kvledger_engine_tokens_total", kind=Kind.COUNTER, labels=("engine", "source"), bound=ENGINES * 11,
    about="Tokens by source: prompt positions `computed`, `cached_own`, `cached_others`, `transferred`, "
    "`unprocessed`; `output` (accepted); and beside these `recomputed`, `drafted`, `rejected`. Of scraped engines "
    "`cached` (whose is not told), and `prompt` where nothing is told apart.",
)  # fmt: skip
ENGINE_PREEMPTIONS = Metric(
    name="kvledger_engine_preemptions_total", kind=Kind.COUNTER, labels=("engine", "reason"), bound=ENGINES * 5,
    about="Running requests that lost their blocks, by reason; `unknown` of scraped engines.",
)  # fmt: skip

# --- requests ---------------------------------------------------------------------------------------------

REQUESTS = Metric(
    name="kvledger_requests_total", kind=Kind.COUNTER, labels=("scenario", "outcome"), bound=_FAMILY * 6,
    about="Core requests that ended, by outcome.",
)  # fmt: skip
REQUEST_LENGTH = Metric(
    name="kvledger_request_length_tokens", kind=Kind.HISTOGRAM, labels=("scenario", "direction"),
    buckets=LENGTH_TOKENS, bound=_FAMILY * 2,
    about="Tokens of requests that ended: the prompt (`in`) and the accepted output (`out`), exactly.",
)  # fmt: skip
QUEUE_TIME = Metric(
    name="kvledger_request_queue_seconds", kind=Kind.HISTOGRAM, labels=("scenario", "priority"), buckets=LATENCY_S,
    bound=_FAMILY, about="From arrival to the first schedule, from the histograms of the hooks.",
)  # fmt: skip
FIRST_TOKEN_TIME = Metric(
    name="kvledger_request_first_token_seconds", kind=Kind.HISTOGRAM, labels=("scenario", "priority"),
    buckets=LATENCY_S, bound=_FAMILY, about="From arrival to the first output token, from the histograms of the hooks.",
)  # fmt: skip
INTER_TOKEN_TIME = Metric(
    name="kvledger_request_inter_token_seconds", kind=Kind.HISTOGRAM, labels=("scenario", "priority"),
    buckets=LATENCY_S, bound=_FAMILY, about="Between output tokens of a request, from the histograms of the hooks.",
)  # fmt: skip
END_TO_END_TIME = Metric(
    name="kvledger_request_seconds", kind=Kind.HISTOGRAM, labels=("scenario", "priority"), buckets=LATENCY_S,
    bound=_FAMILY,
    about="From arrival to the end of requests that finished. Its exemplars (OpenMetrics) name a session: "
    "`/v1/sessions?session=…` has what it cost.",
)  # fmt: skip

# --- ingest -----------------------------------------------------------------------------------------------

BATCHES = Metric(
    name="kvledger_batches_total", kind=Kind.COUNTER, labels=("status", "reason"), bound=128,
    about="Batches answered, by what became of them; `reason` (docs/wire.md) where they were not taken.",
)  # fmt: skip
BATCH_GAPS = Metric(
    name="kvledger_batch_gaps_total", kind=Kind.COUNTER, labels=("engine",), bound=ENGINES,
    about="Sequence numbers missing before a batch when it arrived. Until they come, their time is unobserved.",
)  # fmt: skip
BATCHES_LOST = Metric(
    name="kvledger_batches_overlapped_total", kind=Kind.COUNTER, labels=("engine",), bound=ENGINES,
    about="Batches stored but not valid, since a boot accepted earlier claims their time.",
)  # fmt: skip
BATCHES_AHEAD = Metric(
    name="kvledger_batches_ahead_total", kind=Kind.COUNTER, labels=("engine",), bound=ENGINES,
    about="Batches that ended after their receipt, within the bound: a clock is wrong.",
)  # fmt: skip
HOOK_DROPPED = Metric(
    name="kvledger_hook_dropped_total", kind=Kind.COUNTER, labels=("engine", "reason"), bound=ENGINES * 8,
    about="Batches that an engine's outbox let go by its own count since its process began, by reason "
    "(docs/hook-settings.md), as its newest batch says. Every replica that an engine reported to has its last word: "
    "take the greatest.",
)  # fmt: skip
HOOK_FAULTS = Metric(
    name="kvledger_hook_faults_total", kind=Kind.COUNTER, labels=("engine", "reason"), bound=ENGINES * 8,
    about="Calls that an engine's meter could make no sense of since its process began, by reason (docs/hook.md); "
    "told as the drops are.",
)  # fmt: skip
BATCH_LAG = Metric(
    name="kvledger_batch_lag_seconds", kind=Kind.HISTOGRAM, buckets=LAG_S,
    about="Receipt of an accepted batch less the end of its period. A spool that drains shows here, and nowhere else.",
)  # fmt: skip
INGEST_TIME = Metric(
    name="kvledger_ingest_seconds", kind=Kind.HISTOGRAM, buckets=LATENCY_S,
    about="From the last byte of a batch to its answer.",
)  # fmt: skip
INGEST_BYTES = Metric(
    name="kvledger_ingest_bytes_total", kind=Kind.COUNTER, labels=("form",), bound=2,
    about="Bytes of batches as they came (`travelling`) and unpacked (`plain`).",
)  # fmt: skip
INGEST_TURNED_AWAY = Metric(
    name="kvledger_ingest_turned_away_total", kind=Kind.COUNTER, labels=("status",), bound=16,
    about="Batches that were not looked at (429: too many at once; 503: the database did not answer; 4xx: the "
    "request itself), by HTTP status. Senders keep what is answered 401, 408, 413, 429 or 5xx.",
)  # fmt: skip

# --- the ledger: from the leader alone --------------------------------------------------------------------

MONTH_COST = Metric(
    name="kvledger_month_cost", kind=Kind.GAUGE, labels=("account", "kind", "tenant", "currency"),
    bound=limits.TENANT_SERIES_MAX * 3 + 32, scope="ledger",
    about="The running month's bill by account, the part that is not settled included, in units of the currency. "
    "All of them sum to the bill. The dearest tenants are named, the rest is `other`.",
)  # fmt: skip
MONTH_COST_UNITS = Metric(
    name="kvledger_month_cost_units", kind=Kind.GAUGE, labels=("tenant",), bound=limits.TENANT_SERIES_MAX + 2,
    scope="ledger",
    about="Weighted slot-seconds of the running month's settled hours (active x 2.5 + cached x 0.3 unless set "
    "otherwise), by tenant.",
)  # fmt: skip
SETTLED_UNTIL = Metric(
    name="kvledger_settled_until_timestamp_seconds", kind=Kind.GAUGE, scope="ledger",
    about="End of the last settled interval.",
)  # fmt: skip
PROVISIONAL_UNTIL = Metric(
    name="kvledger_provisional_until_timestamp_seconds", kind=Kind.GAUGE, scope="ledger",
    about="End of the last boundary that every open pool has delivered.",
)  # fmt: skip
FINDINGS = Metric(
    name="kvledger_findings", kind=Kind.GAUGE, labels=("severity",), bound=3, scope="ledger",
    about="Findings that speak of the last 24 hours.",
)  # fmt: skip
LAWS_BROKEN = Metric(
    name="kvledger_laws_broken", kind=Kind.GAUGE, scope="ledger",
    about="Breaches that the last audit found in what is stored; 0 is the only good figure.",
)  # fmt: skip
AUDITED = Metric(
    name="kvledger_audit_timestamp_seconds", kind=Kind.GAUGE, scope="ledger", about="End of the last whole audit.",
)  # fmt: skip
QUARANTINED = Metric(
    name="kvledger_quarantine_batches", kind=Kind.GAUGE, scope="ledger", about="Refused batches that are kept.",
)  # fmt: skip
ENGINES_KNOWN = Metric(
    name="kvledger_engines", kind=Kind.GAUGE, labels=("state",), bound=5, scope="ledger",
    about="Engines by state: `open` (a pool is open and was heard of), `starting`, `silent` (open, and not heard of "
    "for 60 s), `closed` (closed cleanly within the last day), `off` (its hook has switched itself off).",
)  # fmt: skip
HOOK_OFF = Metric(
    name="kvledger_hook_off", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES, scope="ledger",
    about="1 for an engine whose hook has switched itself off, until it starts again or for a day; "
    "`kvledger sources list --format json` has why.",
)  # fmt: skip

# --- jobs and the process ---------------------------------------------------------------------------------

JOB_RUNS = Metric(
    name="kvledger_job_runs_total", kind=Kind.COUNTER, labels=("job_name", "outcome"), bound=64,
    about="Runs of a job: `done`, `failed` (an exception; the log has it), `late` (skipped: it came too late), "
    "`overlapped` (skipped: the one before still ran).",
)  # fmt: skip
JOB_TIME = Metric(
    name="kvledger_job_seconds", kind=Kind.HISTOGRAM, labels=("job_name",), buckets=JOB_S, bound=16,
    about="Time that a run took.",
)  # fmt: skip
JOB_SUCCEEDED = Metric(
    name="kvledger_job_last_success_timestamp_seconds", kind=Kind.GAUGE, labels=("job_name",), bound=16,
    about="When a run of the job last ended well.",
)  # fmt: skip
LEADER = Metric(
    name="kvledger_leader", kind=Kind.GAUGE, about="1 where this process runs the jobs, else 0.",
)  # fmt: skip
HTTP_REQUESTS = Metric(
    name="kvledger_http_requests_total", kind=Kind.COUNTER, labels=("route", "status"), bound=256,
    about="Requests answered, by the route's pattern (never the path) and the status.",
)  # fmt: skip
HTTP_TIME = Metric(
    name="kvledger_http_seconds", kind=Kind.HISTOGRAM, labels=("route",), buckets=LATENCY_S, bound=64,
    about="From the request's head to the end of the answer.",
)  # fmt: skip
WORKERS_BUSY = Metric(
    name="kvledger_worker_threads_busy", kind=Kind.GAUGE,
    about="Threads of the pool that answers requests which are at work.",
)  # fmt: skip
WORKERS_QUEUED = Metric(
    name="kvledger_worker_threads_queued", kind=Kind.GAUGE,
    about="Requests that wait for a thread of the pool, which is full: as the last request that came or went saw it.",
)  # fmt: skip
WORKERS = Metric(
    name="kvledger_worker_threads_max", kind=Kind.GAUGE, about="Threads that the pool may have.",
)  # fmt: skip
THREADS = Metric(
    name="kvledger_threads", kind=Kind.GAUGE, about="Threads of the process.",
)  # fmt: skip
DISK_FREE = Metric(
    name="kvledger_disk_free_bytes", kind=Kind.GAUGE, about="Free bytes where the embedded database lies.",
)  # fmt: skip
BUILD = Metric(
    name="kvledger_build_info", kind=Kind.GAUGE, labels=("version",), about="1; the version is the label.",
)  # fmt: skip

DECLARED: Final = (
    STEP_LATENCY, STEP_REQUESTS_SCHEDULED, KV_UTILIZATION, KV_BLOCKS, ENGINE_HEARD, ENGINE_SKEW, ENGINE_STEPS,
    ENGINE_STEP_TIME, ENGINE_TOKENS, ENGINE_PREEMPTIONS,
    REQUESTS, REQUEST_LENGTH, QUEUE_TIME, FIRST_TOKEN_TIME, INTER_TOKEN_TIME, END_TO_END_TIME,
    BATCHES, BATCH_GAPS, BATCHES_LOST, BATCHES_AHEAD, HOOK_DROPPED, HOOK_FAULTS, BATCH_LAG, INGEST_TIME, INGEST_BYTES,
    INGEST_TURNED_AWAY,
    MONTH_COST, MONTH_COST_UNITS, SETTLED_UNTIL, PROVISIONAL_UNTIL, FINDINGS, LAWS_BROKEN, AUDITED, QUARANTINED,
    ENGINES_KNOWN, HOOK_OFF,
    JOB_RUNS, JOB_TIME, JOB_SUCCEEDED, LEADER, HTTP_REQUESTS, HTTP_TIME, WORKERS_BUSY, WORKERS_QUEUED, WORKERS, THREADS,
    DISK_FREE, BUILD,
    *metrics_scraped.DECLARED,
    *metrics_gpu.DECLARED,
)  # fmt: skip


class _Histogram:
    __slots__ = ("counts", "exemplars", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.exemplars: dict[int, Exemplar] = {}
        self.total = 0.0


class Metrics(Collector):
    """The values of one process. Thread-safe; register it with a registry of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, dict[Labels, float]] = {m.name: {} for m in DECLARED if m.kind is not Kind.HISTOGRAM}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {
            m.name: {} for m in DECLARED if m.kind is Kind.HISTOGRAM
        }

    def add(self, metric: Metric, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            series = self._numbers[metric.name]
            key = _bounded(metric, series, labels)
            series[key] = series.get(key, 0) + by

    def report(self, metric: Metric, labels: Labels, count: float) -> None:
        """Set a counter that somebody else keeps. One beyond the bound is left out, as with :meth:`put`."""
        assert metric.kind is Kind.COUNTER, metric.name
        self.put(metric, labels, count)

    def put(self, metric: Metric, labels: Labels = (), value: float = 0) -> None:
        """Set a gauge. One beyond the bound is left out: a sum of gauges would mean nothing."""
        with self._lock:
            series = self._numbers[metric.name]
            if labels in series or len(series) < metric.bound:
                series[labels] = value

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Set all series of a gauge; those that are not named are gone."""
        assert len(values) <= metric.bound, (metric.name, len(values))
        with self._lock:
            self._numbers[metric.name] = dict(values)

    def forget(self, metric: Metric, first: str) -> None:
        """Drop the series whose first label is ``first``: an engine that is no more."""
        with self._lock:
            series = self._numbers[metric.name]
            for key in [key for key in series if key[:1] == (first,)]:
                del series[key]

    def drop(self, metric: Metric, labels: Labels) -> None:
        """Drop one series of a gauge: its figure is not known any more."""
        with self._lock:
            self._numbers[metric.name].pop(labels, None)

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Put ``value`` into a histogram."""
        place = bisect_left(metric.buckets, value)
        with self._lock:
            series = self._histograms[metric.name]
            key = _bounded(metric, series, labels)
            if (found := series.get(key)) is None:
                found = series[key] = _Histogram(len(metric.buckets))
            found.counts[place] += 1
            found.total += value

    def remark(self, metric: Metric, labels: Labels, value: float, *, exemplar: tuple[str, str, float]) -> None:
        """Attach an exemplar (label name and value, Unix time) to the bucket of ``value``, counted apart."""
        name, text, at_s = exemplar
        with self._lock:
            found = self._histograms[metric.name].get(labels)
            if found is not None:
                place = bisect_left(metric.buckets, value)
                found.exemplars[place] = Exemplar({name: text[:EXEMPLAR_CHARS_MAX]}, value, at_s)

    def merge(self, metric: Metric, labels: Labels, values: Iterable[tuple[float, int]], total: float) -> None:
        """Add a whole histogram: pairs of a value and how often it was, and the sum of the true values."""
        with self._lock:
            series = self._histograms[metric.name]
            key = _bounded(metric, series, labels)
            if (found := series.get(key)) is None:
                found = series[key] = _Histogram(len(metric.buckets))
            for value, times in values:
                found.counts[bisect_left(metric.buckets, value)] += times
            found.total += total

    def collect(self) -> Iterator[Family]:
        """Every declared metric, those without a value as well, so that nothing is missing by accident."""
        for metric in DECLARED:
            if metric.kind is Kind.HISTOGRAM:
                yield self._histogram(metric)
                continue
            with self._lock:
                values = list(self._numbers[metric.name].items())
            kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.about, labels=metric.labels)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family

    def value(self, metric: Metric, labels: Labels = ()) -> float:
        """The value of a counter or gauge, 0 where it has none."""
        with self._lock:
            return self._numbers[metric.name].get(labels, 0)

    def count(self, metric: Metric, labels: Labels = ()) -> int:
        """How many values a histogram holds."""
        with self._lock:
            found = self._histograms[metric.name].get(labels)
            return 0 if found is None else sum(found.counts)

    def _histogram(self, metric: Metric) -> HistogramMetricFamily:
        family = HistogramMetricFamily(metric.name, metric.about, labels=metric.labels)
        bounds = [f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in metric.buckets] + ["+Inf"]
        with self._lock:
            series = [(k, list(h.counts), dict(h.exemplars), h.total) for k, h in self._histograms[metric.name].items()]
        for labels, counts, exemplars, total in series:
            running = 0
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for place, (bound, number) in enumerate(zip(bounds, counts, strict=True)):
                running += number
                exemplar = exemplars.get(place)
                buckets.append((bound, running) if exemplar is None else (bound, running, exemplar))
            family.add_metric(labels, buckets, total)
        return family


def _bounded(metric: Metric, series: Mapping[Labels, object], labels: Labels) -> Labels:
    if labels in series or len(series) < metric.bound:
        assert len(labels) == len(metric.labels), (metric.name, labels)
        return labels
    return (OTHER,) * len(labels)


def document() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "<!-- Made of ledger/metrics.py by `python -m ledger.metrics > docs/metrics.md`; a test compares. -->",
        "",
        "What `/metrics` of the service exposes, in Prometheus' text format or OpenMetrics (with exemplars), as the",
        "scraper asks. Every metric is there from the start, if without series. Names have base units; histograms can",
        "be added up over engines, scenarios and replicas. `scope`: *process* figures are each replica's own part (add",
        "them up); *ledger* figures come from the replica that runs the jobs, alone. `series at most` is the number of",
        "label sets; beyond it counters and histograms go on under `other`.",
        "",
        "Sessions are never labels: they live in the books (`/v1/sessions`). Tenants are labels up to the setting",
        f"`metrics_tenants` ({limits.TENANT_SERIES_MAX} unless set, the dearest of the month; 0: none); the rest is",
        f"the tenant `{OTHER}`.",
        "Batches that are older than 2 minutes when they arrive feed the books only: a spool that drains is not now.",
        "`process_*` and `python_*` of the Prometheus client (CPU, memory, files, collections) are there as well.",
        "",
    ]
    for metric in DECLARED:
        lines += [f"## {metric.name}", ""]
        facts = [metric.kind.value, f"scope {metric.scope}", f"series at most {metric.bound}"]
        if metric.labels:
            facts.insert(1, "labels " + ", ".join(f"`{label}`" for label in metric.labels))
        lines += ["; ".join(facts), "", metric.about, ""]
        if metric.buckets:
            lines += ["Buckets: " + ", ".join(f"{bound:.10g}" for bound in metric.buckets), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(document(), end="")
