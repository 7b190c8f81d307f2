"""The parts of a step: told by an engine, or by its ranks, in the histograms of the period in which they are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_meter import SECOND, Engine

from ledger.core.quantiles import VALUE_MAX, bucket_index
from ledger.core.records import PERIOD_US
from ledger.hook.histograms import DURATION_US_MAX, METHODS, PHASES
from ledger.limits import PERIOD_PHASES_MAX, PERIOD_SHARDS_MAX, TEXT_CHARS_MAX


def parts(batch):
    """(phase, shard, method) to the histogram, ``total`` left out."""
    found = {}
    for one in batch.histograms:
        labels = dict(one.labels)
        if one.name == "step_latency_us" and labels["phase"] != "total":
            found[labels["phase"], labels["shard"], labels["method"]] = one
    return found


def test_each_part_of_each_rank_has_its_own_histogram():
    engine = Engine()
    for rank, communication in (("dp0pp0tp0", 300), ("dp0pp0tp1", 100)):
        times = {"execute": 1000, "communication": communication, "compute": 1000 - communication}
        engine.meter.phases(SECOND, times, shard=rank)
    engine.meter.phases(SECOND, {"schedule": 40, "update": 50})
    engine.meter.phases(SECOND, {"schedule": 60, "update": 50, "wait": 0})
    engine.meter.close(2 * SECOND)
    found = parts(engine.last)
    assert {key: (one.count, one.total) for key, one in found.items()} == {
        ("execute", "dp0pp0tp0", "wall"): (1, 1000),
        ("communication", "dp0pp0tp0", "wall"): (1, 300),
        ("compute", "dp0pp0tp0", "wall"): (1, 700),
        ("execute", "dp0pp0tp1", "wall"): (1, 1000),
        ("communication", "dp0pp0tp1", "wall"): (1, 100),
        ("compute", "dp0pp0tp1", "wall"): (1, 900),
        ("schedule", "", "wall"): (2, 100),
        ("update", "", "wall"): (2, 100),
        ("wait", "", "wall"): (1, 0),
    }
    assert found["schedule", "", "wall"].buckets == ((bucket_index(40), 1), (bucket_index(60), 1))
    assert not engine.meter.faults


def test_ways_of_timing_are_not_mixed():
    engine = Engine()
    for method in sorted(METHODS):
        engine.meter.phases(SECOND, {"execute": 10}, shard="dp0pp0tp0", method=method)
    engine.meter.close(2 * SECOND)
    assert {method for _, _, method in parts(engine.last)} == METHODS


def test_a_part_counts_in_the_period_in_which_it_is_told():
    engine = Engine()
    engine.step(0, SECOND, {})
    engine.meter.phases(PERIOD_US + SECOND, {"schedule": 10})
    engine.meter.close(PERIOD_US + 2 * SECOND)
    assert [list(parts(batch)) for batch in engine.batches[-2:]] == [[], [("schedule", "", "wall")]]


def test_a_part_that_is_told_late_does_not_turn_the_clock_back():
    engine = Engine()
    engine.meter.phases(2 * SECOND, {"schedule": 10})
    engine.meter.phases(SECOND, {"schedule": 10})
    engine.meter.close(2 * SECOND)
    assert not engine.meter.faults
    assert parts(engine.last)["schedule", "", "wall"].count == 2


def test_shards_beyond_the_bound_go_together():
    engine = Engine()
    for rank in range(PERIOD_SHARDS_MAX + 5):
        engine.meter.phases(SECOND, {"execute": 7}, shard=f"dp0pp0tp{rank}")
    engine.meter.close(2 * SECOND)
    found = parts(engine.last)
    assert len(found) == PERIOD_SHARDS_MAX + 1
    assert found["execute", "other", "wall"].count == 5


def test_a_period_keeps_no_more_timings_than_its_bound():
    engine = Engine()
    times = {"execute": DURATION_US_MAX}
    for _ in range(PERIOD_PHASES_MAX + 3):
        engine.meter.phases(SECOND, times)
    engine.meter.close(2 * SECOND)
    (one,) = parts(engine.last).values()
    assert one.count == PERIOD_PHASES_MAX
    assert one.total <= VALUE_MAX


@pytest.mark.parametrize(
    ("times", "more"),
    [
        ({"thinking": 1}, {}),
        ({"execute": -1}, {}),
        ({"execute": DURATION_US_MAX + 1}, {}),
        ({"execute": 1.5}, {}),
        ({"execute": True}, {}),
        ({"execute": 1}, {"method": "guess"}),
        ({"execute": 1}, {"shard": "x" * (TEXT_CHARS_MAX + 1)}),
        ({"execute": 1, "compute": -1}, {}),
    ],
)
def test_what_cannot_be_a_part_is_a_fault_and_changes_nothing(times, more):
    engine = Engine()
    engine.meter.phases(SECOND, times, **more)
    engine.meter.close(2 * SECOND)
    assert engine.meter.faults == {"phase_unclear": 1}
    assert not parts(engine.last)


anything = st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
times = st.dictionaries(st.sampled_from(sorted(PHASES)) | st.none() | st.text(max_size=3), anything, max_size=3)
methods = st.sampled_from(sorted(METHODS))


@given(st.lists(st.tuples(times | anything, st.just("dp0pp0tp0") | anything, methods | anything), max_size=8))
def test_whatever_is_told_does_not_raise_and_the_period_is_sent(calls):
    engine = Engine()
    for durations, shard, method in calls:
        engine.meter.phases(SECOND, durations, shard=shard, method=method)
    engine.meter.close(2 * SECOND)
    assert engine.meter.faults.keys() <= {"internal", "phase_unclear"}
    assert len(engine.batches) == 2
    assert engine.last.end_us - engine.last.start_us == 2 * SECOND
