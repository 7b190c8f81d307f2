"""The metrics of what is scraped: how the scraping goes, and what engines say that no hook says.

Figures that hooks give as well have the names that they have there (:mod:`ledger.metrics`); an engine with a hook shows
the hook's. ``kvledger_engine_method`` says which it is.
"""

from __future__ import annotations

from typing import Final

from ledger.metric import ENGINES, LATENCY_S, Kind, Metric

DIFFERENCES: Final = ("output_tokens", "prompt_tokens", "kv_active", "running")
"""Figures that are compared where an engine has a hook and is scraped, too."""

METHOD = Metric(
    name="kvledger_engine_method", kind=Kind.GAUGE, labels=("engine", "method"), bound=ENGINES * 2, scope="ledger",
    about="1 for each way in which an engine is known: `hook` (its hook reported within two minutes), `scraped` (its "
    "`/metrics` answered). Of an engine with both, the hook's figures are shown and carry money.",
)  # fmt: skip
REQUESTS_NOW = Metric(
    name="kvledger_engine_requests", kind=Kind.GAUGE, labels=("engine", "state"), bound=ENGINES * 2, scope="ledger",
    about="Requests `running` and `waiting` at the last scrape. Absent where the gauge is known to be dead.",
)  # fmt: skip
TARGETS = Metric(
    name="kvledger_scrape_targets", kind=Kind.GAUGE, scope="ledger", about="Addresses that are scraped.",
)  # fmt: skip
SCRAPES = Metric(
    name="kvledger_scrapes_total", kind=Kind.COUNTER, labels=("engine", "outcome"), bound=ENGINES * 4,
    about="Scrapes by what became of them: `answered`; `timeout`, `unreachable`, `redirect`, `status`, `too_large`, "
    "`cut_off`, `not_http`, `not_metrics` (nothing known in it), `no_figures` (neither running requests nor "
    "tokens), `fault` (of ours; the log has it); `skipped` (the one before still ran, or too many slow ones waited).",
)  # fmt: skip
SCRAPE_TIME = Metric(
    name="kvledger_scrape_seconds", kind=Kind.HISTOGRAM, labels=("outcome",), buckets=LATENCY_S, bound=16,
    about="From connecting to the last byte, of scrapes that were answered and of those that were not.",
)  # fmt: skip
SCRAPE_LATE = Metric(
    name="kvledger_scrape_late_seconds", kind=Kind.HISTOGRAM, buckets=LATENCY_S,
    about="From the instant at which a scrape was due to its beginning: what slow targets cost the others.",
)  # fmt: skip
SCRAPED = Metric(
    name="kvledger_scrape_last_answer_timestamp_seconds", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES,
    scope="ledger", about="When a target last answered; the time at which its scraping began while it has not yet.",
)  # fmt: skip
FAILING = Metric(
    name="kvledger_scrape_failures_in_a_row", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES, scope="ledger",
    about="Scrapes without an answer since the last one with one.",
)  # fmt: skip
SIGNS = Metric(
    name="kvledger_scrape_signs_total", kind=Kind.COUNTER, labels=("engine", "sign"), bound=ENGINES * 4,
    about="What was odd about answers, by reason: docs/collectors.md tells each.",
)  # fmt: skip
DEAD = Metric(
    name="kvledger_scrape_dead_gauges", kind=Kind.GAUGE, labels=("engine", "figure"), bound=ENGINES * 2,
    scope="ledger", about="1 where a gauge says 0 while requests run, and 0 once it speaks again.",
)  # fmt: skip
UNKNOWN = Metric(
    name="kvledger_scrape_unknown_families", kind=Kind.GAUGE, labels=("engine",), bound=ENGINES, scope="ledger",
    about="Families of the last answer that are not recognised; `kvledger inspect` names them. More of them than "
    "before often are renamed ones.",
)  # fmt: skip
DIFFERENCE = Metric(
    name="kvledger_scrape_difference_ratio", kind=Kind.GAUGE, labels=("engine", "figure"), scope="ledger",
    bound=ENGINES * len(DIFFERENCES),
    about="Of engines with a hook that are scraped as well, over their last five minutes: (scraped - hook) / the "
    "larger of both. 0: they agree. `running`: requests in a step by the hook, by the gauge at scrapes.",
)  # fmt: skip
ROUNDS_WAITING = Metric(
    name="kvledger_scrape_rounds_waiting", kind=Kind.GAUGE, scope="ledger",
    about="Periods that are complete and not written: the database does not take them.",
)  # fmt: skip
ROUNDS_DROPPED = Metric(
    name="kvledger_scrape_rounds_dropped_total", kind=Kind.COUNTER,
    about="Periods that were dropped since too many waited; their time is unobserved.",
)  # fmt: skip

DECLARED: Final = (
    METHOD, REQUESTS_NOW, TARGETS, SCRAPES, SCRAPE_TIME, SCRAPE_LATE, SCRAPED, FAILING, SIGNS, DEAD, UNKNOWN,
    DIFFERENCE, ROUNDS_WAITING, ROUNDS_DROPPED,
)  # fmt: skip
