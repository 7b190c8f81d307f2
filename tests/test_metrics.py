"""Metrics: declared once, bounded, documented, and fed by batches of now and by nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families
from serving import START, Served

from ledger import limits
from ledger import metrics as m
from ledger.core.quantiles import ERROR_PPM, bucket_index, bucket_middle
from ledger.core.records import (
    Batch,
    Boot,
    Dimensions,
    Group,
    Histogram,
    HookReport,
    Origin,
    Outcome,
    PoolOpen,
    PoolPeriod,
    RequestRecord,
    Shard,
    Source,
    Tokens,
)
from ledger.ingest import Outcome as Answered
from ledger.ingest import Status
from ledger.live import Live

ROOT = Path(__file__).parents[1]
PERIOD = 15_000_000


def batch(engine: str = "e", *, number: int = 1, session: str = "s", start_us: int = START) -> Batch:
    labels = (("priority", "0"), ("scenario", "chat"))
    return Batch(
        source=Source(engine=engine, origin=Origin.LIVE),
        boot=Boot(boot_id="b", anchor_us=START, started_us=START),
        seq=number,
        start_us=start_us,
        end_us=start_us + PERIOD,
        skew_us=250_000,
        opens=(
            PoolOpen(
                pool="kv", at_us=START, blocks=10, groups=(Group(block_size=16),), shards=(Shard(), Shard(tp=1))
            ),
        ),
        pools=(
            PoolPeriod(
                pool="kv", blocks=10, active_block_us=4 * PERIOD, cached_block_us=PERIOD, free_block_us=5 * PERIOD,
                active_blocks_end=3, cached_blocks_end=2, steps=7, step_us=1_500_000,
            ),
        ),
        requests=(
            RequestRecord(
                request="r", dims=Dimensions(tenant="t", session=session, scenario="chat"), pool="kv",
                outcome=Outcome.FINISHED, prompt_tokens=8192, tokens=Tokens(computed=8192, output=100),
                arrived_us=start_us, ended_us=start_us + 400_000,
            ),
        ),
        histograms=(
            Histogram(
                name="end_to_end_us", labels=labels, buckets=((bucket_index(400_000), 1),), count=1, total=400_000
            ),
            Histogram(name="queue_us", labels=labels, buckets=((bucket_index(2_000), 3),), count=3, total=6_000),
            Histogram(name="step_latency_us", labels=(("phase", "total"),), buckets=((20, 7),), count=7, total=140),
        ),
    )  # fmt: skip


def shown(one: Batch, *, after_us: int = 1_000_000, metrics: m.Metrics | None = None) -> m.Metrics:
    metrics = metrics or m.Metrics()
    Live(metrics).answered(Answered(status=Status.ACCEPTED, batch=one), one.end_us + after_us)
    return metrics


def test_names_have_the_prefix_the_unit_and_a_help_that_says_how() -> None:
    names = [one.name for one in m.DECLARED]
    assert len(set(names)) == len(names)
    for one in m.DECLARED:
        assert re.fullmatch(r"kvledger_[a-z_]+", one.name)
        assert one.name.endswith("_total") == (one.kind is m.Kind.COUNTER)
        assert len(one.about) > 10
        assert one.about.endswith(".")
        assert bool(one.buckets) == (one.kind is m.Kind.HISTOGRAM)
        assert list(one.buckets) == sorted(one.buckets)


def test_the_document_is_made_of_the_declarations() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == m.document()


def test_every_declared_metric_is_exposed_before_anything_happened() -> None:
    registry = CollectorRegistry()
    registry.register(m.Metrics())
    text = generate_latest(registry).decode()
    for one in m.DECLARED:
        assert f"# TYPE {one.name} {one.kind.value}" in text


def test_a_batch_of_now_shows_blocks_work_and_latencies() -> None:
    metrics = shown(batch())
    for shard in ("dp0pp0tp0", "dp0pp0tp1"):
        blocks = [metrics.value(m.KV_BLOCKS, ("e", "kv", shard, state)) for state in ("active", "cached", "free")]
        assert blocks == [3, 2, 5]
        assert metrics.value(m.KV_UTILIZATION, ("e", "kv", shard)) == 0.4
    assert metrics.value(m.ENGINE_STEPS, ("e",)) == 7
    assert metrics.value(m.ENGINE_STEP_TIME, ("e",)) == 1.5
    assert metrics.value(m.ENGINE_SKEW, ("e",)) == 0.25
    assert metrics.count(m.STEP_LATENCY, ("e", "total", "", "wall")) == 7
    assert metrics.count(m.QUEUE_TIME, ("chat", "0")) == 3
    assert metrics.value(m.REQUESTS, ("chat", "finished")) == 1


def test_a_prompt_of_exactly_8k_is_not_longer_than_8k() -> None:
    metrics = shown(batch())
    found = {
        sample.labels["le"]: sample.value
        for family in metrics.collect() if family.name == m.REQUEST_LENGTH.name
        for sample in family.samples if sample.name.endswith("_bucket") and sample.labels["direction"] == "in"
    }  # fmt: skip
    assert (found["4096"], found["8192"], found["+Inf"]) == (0, 1, 1)


def test_a_spool_that_drains_moves_the_lag_and_nothing_of_now() -> None:
    late = shown(batch(), after_us=limits.LIVE_AGE_US_MAX + 1)
    assert late.count(m.BATCH_LAG) == 1
    assert late.value(m.BATCHES, ("accepted", "")) == 1
    for metric, labels in ((m.ENGINE_STEPS, ("e",)), (m.KV_BLOCKS, ("e", "kv", "dp0pp0tp0", "active"))):
        assert late.value(metric, labels) == 0
    assert late.count(m.QUEUE_TIME, ("chat", "0")) == 0


def test_a_duplicate_counts_as_one_and_shows_nothing_twice() -> None:
    metrics = shown(batch())
    Live(metrics).answered(Answered(status=Status.DUPLICATE), START)
    assert metrics.value(m.BATCHES, ("duplicate", "")) == 1
    assert metrics.count(m.QUEUE_TIME, ("chat", "0")) == 3


def test_an_exemplar_leads_to_a_session_and_openmetrics_can_be_parsed(served: Served) -> None:
    one = batch(session="sess-" + "x" * 300)
    served.service.live.answered(Answered(status=Status.ACCEPTED, batch=one), one.end_us)
    text = served.get("/metrics").text
    assert {family.name for family in families(text)} >= {one.name.removesuffix("_total") for one in m.DECLARED}
    got = served.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    exemplars = [
        sample.exemplar.labels
        for family in open_families(got.text) for sample in family.samples if sample.exemplar is not None
    ]  # fmt: skip
    assert exemplars == [{"session": "sess-" + "x" * (m.EXEMPLAR_CHARS_MAX - 5)}]


def test_series_are_bounded_and_sums_stay_whole() -> None:
    metrics = m.Metrics()
    for number in range(m.ENGINES + 50):
        metrics.add(m.ENGINE_STEPS, (f"e{number}",), 1)
    family = next(family for family in metrics.collect() if family.name == "kvledger_engine_steps")
    assert len(family.samples) == m.ENGINES + 1
    assert sum(sample.value for sample in family.samples) == m.ENGINES + 50
    assert metrics.value(m.ENGINE_STEPS, (m.OTHER,)) == 50


def test_what_a_hook_counts_is_shown_as_it_counts_it_however_often_it_is_told() -> None:
    metrics = m.Metrics()
    live = Live(metrics)
    for number, dropped in ((1, 3), (2, 3), (3, 5)):
        report = HookReport(dropped=(("spool_bytes", dropped),), faults=(("unknown_request", 2),))
        one = replace(batch(number=number), hook=report)
        live.answered(Answered(status=Status.ACCEPTED, batch=one), one.end_us)
    assert metrics.value(m.HOOK_DROPPED, ("e", "spool_bytes")) == 5
    assert metrics.value(m.HOOK_FAULTS, ("e", "unknown_request")) == 2
    again = replace(batch(), boot=Boot(boot_id="c", anchor_us=START, started_us=START))
    live.answered(Answered(status=Status.ACCEPTED, batch=again), again.end_us)
    for metric in (m.HOOK_DROPPED, m.HOOK_FAULTS):
        family = next(found for found in metrics.collect() if f"{found.name}_total" == metric.name)
        assert family.samples == []


def test_what_a_hook_counts_beyond_the_bound_is_left_out() -> None:
    metrics = m.Metrics()
    for number in range(m.HOOK_DROPPED.bound + 1):
        metrics.report(m.HOOK_DROPPED, (f"e{number}", "off"), number)
    family = next(family for family in metrics.collect() if family.name == "kvledger_hook_dropped")
    assert len(family.samples) == m.HOOK_DROPPED.bound


def test_a_new_boot_forgets_the_pools_of_the_one_before() -> None:
    metrics = m.Metrics()
    live = Live(metrics)
    one = batch()
    live.answered(Answered(status=Status.ACCEPTED, batch=one), one.end_us)
    other = Batch(
        source=one.source,
        boot=Boot(boot_id="c", anchor_us=START, started_us=START),
        seq=1,
        start_us=START,
        end_us=START,
    )
    live.answered(Answered(status=Status.ACCEPTED, batch=other), START)
    assert metrics.value(m.KV_BLOCKS, ("e", "kv", "dp0pp0tp0", "active")) == 0


@given(st.lists(st.integers(0, 10**9), max_size=50))
def test_a_merged_histogram_has_the_count_and_the_sum_and_places_within_the_stated_error(values: list[int]) -> None:
    metrics = m.Metrics()
    pairs = [(bucket_middle(bucket_index(value)) / 1e6, 1) for value in values]
    metrics.merge(m.QUEUE_TIME, ("", ""), pairs, sum(values) / 1e6)
    assert metrics.count(m.QUEUE_TIME, ("", "")) == len(values)
    for value, (placed, _) in zip(values, pairs, strict=True):
        assert abs(placed * 1e6 - value) <= value * ERROR_PPM / 1e6 + 1


def test_writing_what_is_not_declared_is_a_bug() -> None:
    stranger = m.Metric(name="kvledger_stranger", kind=m.Kind.GAUGE, about="Nobody knows it.")
    with pytest.raises(KeyError):
        m.Metrics().put(stranger, (), 1)
