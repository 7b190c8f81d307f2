"""The laws that one batch shows: a lawful batch passes, and an error of one in any figure is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from batches import ALICE, BOB, T0, UNKNOWN, Life, changed, lawful, pool_open, record

from ledger.core.records import (
    Histogram,
    Outcome,
    PoolClose,
    PoolPeriod,
    SessionPeriod,
    StandingCount,
)
from ledger.laws import breach
from ledger.refusals import Reason


def reason(batch) -> str | None:
    found = breach(batch)
    return None if found is None else found.reason


def test_a_lawful_batch_passes() -> None:
    assert breach(lawful()) is None
    life = Life()
    assert breach(life.announce()) is None
    assert breach(life.period({})) is None
    assert breach(life.period({ALICE: (1, 0)}, closes=True)) is None


@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("pools.0.blocks", Reason.POOL_SUM),
        ("pools.0.active_block_us", Reason.POOL_SUM),
        ("pools.0.cached_block_us", Reason.POOL_SUM),
        ("pools.0.free_block_us", Reason.POOL_SUM),
        ("pools.0.groups.0.active_block_us", Reason.GROUP_SUM),
        ("pools.0.unfilled_slot_us", Reason.SESSION_SUM),
        ("pools.0.step_us", Reason.STEP_SUM),
        ("pools.0.cached_blocks_end", Reason.STANDING_SUM),
        ("sessions.0.holding.active_block_us", Reason.SESSION_SUM),
        ("sessions.1.holding.unfilled_slot_us", Reason.SESSION_SUM),
        ("sessions.1.compute_us", Reason.STEP_SUM),
        ("sessions.0.cached_blocks_end", Reason.STANDING_SUM),
        ("standing.0.cached_blocks", Reason.STANDING_SUM),
        ("requests.0.prompt_tokens", Reason.PROMPT_SUM),
        ("requests.0.tokens.computed", Reason.PROMPT_SUM),
        ("requests.0.tokens.cached_own", Reason.PROMPT_SUM),
        ("requests.0.tokens.unprocessed", Reason.PROMPT_SUM),
        ("requests.0.uses.1.active_block_us", Reason.USE_SUM),
        ("requests.0.uses.0.compute_us", Reason.USE_SUM),
        ("requests.0.holding.active_block_us", Reason.USE_SUM),
        ("requests.0.compute_us", Reason.USE_SUM),
    ],
)
def test_an_error_of_one_is_named(path, by, expected) -> None:
    assert reason(changed(lawful(), path, by)) == expected


def test_a_session_cannot_have_more_cached_time_than_the_pool() -> None:
    batch = lawful()
    assert batch.pools[0].cached_block_us == 60 * 15_000_000
    assert reason(changed(batch, "sessions.1.cached_block_us", 50 * 15_000_000)) is None
    assert reason(changed(batch, "sessions.1.cached_block_us", 50 * 15_000_000 + 1)) == Reason.SESSION_SUM


def test_sessions_with_a_row_may_have_less_cached_than_the_pool_since_others_are_quiet() -> None:
    assert reason(Life().period({ALICE: (1, 2)}, quiet={BOB: (0, 700)})) is None


@pytest.mark.parametrize(
    ("start_us", "end_us", "expected"),
    [
        (T0, T0, Reason.BAD_PERIOD),
        (T0 + 1, T0, Reason.BAD_PERIOD),
        (T0, T0 + 15_000_001, Reason.BAD_PERIOD),
        (T0 + 14_999_999, T0 + 15_000_001, Reason.BAD_PERIOD),
        (T0 + 14_999_999, T0 + 15_000_000, None),
        (T0, T0 + 15_000_000, None),
    ],
)
def test_a_period_has_a_length_and_stays_within_its_cell_of_the_grid(start_us, end_us, expected) -> None:
    pool = PoolPeriod(
        pool="gpu", blocks=2, active_block_us=0, cached_block_us=0, free_block_us=2 * max(0, end_us - start_us)
    )
    batch = replace(Life().announce(), start_us=start_us, end_us=end_us, pools=(pool,))
    assert reason(batch) == expected


def test_a_batch_without_pools_may_have_a_length_since_its_engine_may_be_asleep() -> None:
    assert reason(replace(Life().announce(), end_us=T0 + 5)) is None


def test_no_row_stands_twice() -> None:
    batch = lawful()
    for name in ("pools", "sessions", "standing", "requests", "admissions", "histograms"):
        rows = getattr(batch, name)
        assert reason(replace(batch, **{name: (*rows, rows[0])})) == Reason.DUPLICATE_ROW, name


def test_a_pool_counts_from_its_opening_to_its_closing() -> None:
    host = PoolPeriod(pool="host", blocks=7, active_block_us=0, cached_block_us=0, free_block_us=7 * 4)
    opened = replace(pool_open(T0 + 10, "host", paying=False), blocks=7)
    closed = PoolClose(pool="host", at_us=T0 + 14, reason="sleep")
    batch = lawful()
    batch = replace(batch, pools=(*batch.pools, host), opens=(*batch.opens, opened), closes=(closed,))
    assert reason(batch) is None
    assert reason(changed(batch, "closes.0.at_us", 1)) == Reason.POOL_SUM
    assert reason(changed(batch, "opens.1.at_us", 1)) == Reason.POOL_SUM


def test_a_pool_that_opens_again_with_another_size_counts_both_times() -> None:
    pool = PoolPeriod(pool="gpu", blocks=3, active_block_us=0, cached_block_us=0, free_block_us=2 * 10 + 3 * 15)
    first, again = replace(pool_open(T0), blocks=2), replace(pool_open(T0 + 25), blocks=3)
    batch = replace(
        Life().announce(),
        end_us=T0 + 40,
        pools=(pool,),
        opens=(first, again),
        closes=(PoolClose(pool="gpu", at_us=T0 + 10, reason="sleep"),),
    )
    assert reason(batch) is None


def test_a_pool_that_was_open_before_and_opens_again_is_checked_as_far_as_it_can_be() -> None:
    pool = PoolPeriod(pool="gpu", blocks=3, active_block_us=0, cached_block_us=0, free_block_us=5 * 10 + 3 * 15)
    batch = replace(
        Life().announce(),
        end_us=T0 + 40,
        pools=(pool,),
        opens=(replace(pool_open(T0 + 25), blocks=3),),
        closes=(PoolClose(pool="gpu", at_us=T0 + 10, reason="sleep"),),
    )
    assert reason(batch) is None
    assert reason(changed(batch, "pools.0.free_block_us", 1)) == Reason.POOL_SUM


def test_events_lie_within_the_batch() -> None:
    batch = lawful()
    assert reason(changed(batch, "opens.0.at_us", -1)) == Reason.BAD_ORDER
    assert reason(changed(batch, "admissions.0.arrived_us", 15_000_000)) == Reason.BAD_ORDER
    assert reason(replace(batch, opens=(replace(batch.opens[0], groups=()),))) == Reason.MISSING_FIELD


def test_one_pool_at_a_time_carries_money() -> None:
    batch = replace(lawful(), pools=(), sessions=(), standing=None)
    two = (pool_open(T0, "a"), pool_open(T0 + 9, "b"))
    assert reason(replace(batch, opens=two)) == Reason.TWO_PAYING
    closed = (PoolClose(pool="a", at_us=T0 + 9, reason="sleep"),)
    assert reason(replace(batch, opens=two, closes=closed)) is None
    assert reason(replace(batch, opens=(two[0], pool_open(T0, "b", paying=False)))) is None


def test_rows_of_a_pool_without_totals_are_refused() -> None:
    batch = lawful()
    stray = SessionPeriod(pool="host", dims=ALICE)
    assert reason(replace(batch, sessions=(*batch.sessions, stray))) == Reason.UNKNOWN_POOL
    count = StandingCount(pool="host", dims=ALICE, cached_blocks=1)
    assert reason(replace(batch, standing=(*batch.standing, count))) == Reason.UNKNOWN_POOL


def test_standing_counts_and_rows_agree_session_by_session() -> None:
    batch = lawful()
    swapped = tuple(
        replace(row, dims=UNKNOWN if row.dims == ALICE else ALICE if row.dims == UNKNOWN else row.dims)
        for row in batch.standing
    )
    assert reason(replace(batch, standing=swapped)) == Reason.STANDING_SUM


def test_steps_cannot_take_longer_than_the_boot_has_lasted() -> None:
    life = Life()
    batch = life.period({ALICE: (15_001, 0)})
    assert batch.sessions[0].compute_us > 15_000_000
    pool = replace(batch.pools[0], blocks=20_000, free_block_us=4_999 * 15_000_000)
    assert reason(replace(batch, pools=(pool,))) == Reason.STEP_SUM


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"outcome": Outcome.LOST}, Reason.DERIVED_OUTCOME),
        ({"scheduled_us": T0}, Reason.BAD_ORDER),
        ({"first_token_us": T0 + 5}, Reason.BAD_ORDER),
        ({"last_token_us": None}, None),
        ({"scheduled_us": None, "first_token_us": None, "last_token_us": None}, None),
        ({"ended_us": T0 + 15_000_001}, Reason.BAD_ORDER),
        ({"ended_us": T0 + 3}, Reason.BAD_ORDER),
        ({"uses": tuple(reversed(record("r", T0, T0 + 9).uses))}, Reason.BAD_ORDER),
    ],
)
def test_a_record_has_an_end_that_can_be_and_milestones_in_order(change, expected) -> None:
    batch = lawful()
    assert reason(replace(batch, requests=(replace(batch.requests[0], **change),))) == expected


def test_more_drafts_cannot_be_rejected_than_were_made() -> None:
    assert reason(changed(lawful(), "requests.0.tokens.rejected", 1)) == Reason.BAD_TOKENS


def test_a_histogram_counts_at_least_what_its_buckets_hold() -> None:
    batch = lawful()
    short = Histogram(name="x_us", buckets=((1, 5),), count=4)
    assert reason(replace(batch, histograms=(short,))) == Reason.HISTOGRAM_SUM
