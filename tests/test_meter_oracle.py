"""The meter against the naive oracle on seeded random schedules (see schedules.py)."""

from __future__ import annotations

from itertools import pairwise

import pytest
import schedules
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = 400
SLOW_SEEDS = 10_000
CHUNK = 500


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_the_meter_equals_the_oracle(first):
    for seed in range(first, first + 100):
        schedules.run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SLOW_SEEDS, CHUNK))
def test_the_meter_equals_the_oracle_on_ten_thousand_schedules(first):
    for seed in range(first, first + CHUNK):
        schedules.run(seed)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), events=st.integers(1, 30))
def test_short_schedules_of_any_seed_equal_the_oracle(seed, events):
    schedules.Driver(seed, events).run()


def test_schedules_reach_what_they_are_for():
    """A generator that never preempts proves nothing about preemption."""
    seen = {"standing": 0, "preempted": 0, "lost": 0, "others": 0, "own": 0, "loaded": 0, "rejected": 0, "ahead": 0}
    shared = periods = equal = edges = 0
    for seed in range(60):
        driver = schedules.Driver(seed)
        times = []
        tell = driver.both
        driver.both = lambda what, *args, tell=tell, times=times, driver=driver, **more: (
            times.append(driver.t),
            tell(what, *args, **more),
        )
        driver.run()
        equal += sum(a == b for a, b in pairwise(times))
        edges += sum((driver.anchor + t) % schedules.PERIOD_US == 0 for t in times)
        for batch in driver.batches:
            periods += bool(batch.pools)
            seen["standing"] += batch.standing is not None
            for row in batch.sessions:
                seen["others"] += row.tokens.cached_others
                seen["own"] += row.tokens.cached_own
                seen["loaded"] += row.tokens.transferred
                seen["rejected"] += row.tokens.rejected
                seen["ahead"] += row.holding.lookahead_slot_us > 0
                seen["preempted"] += row.preemptions.kv_full + row.preemptions.reset
        answered = {record.request for batch in driver.batches for record in batch.requests}
        seen["lost"] += sum(a.request not in answered for batch in driver.batches for a in batch.admissions)
        shared += any(len(b.holders) > 1 for pool in driver.oracle.pools for b in pool.blocks.values())
    assert all(seen.values()), seen
    assert min(periods, equal, edges) > 200
