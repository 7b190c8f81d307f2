"""The money of an engine that is looked at from outside: busy time is nobody's in particular, the rest is idle."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scraped import record
from settling import HOUR, MINUTE, T0, USD, amounts, asset, boot, inputs, stretch, tenant

from ledger.core.allocation import Account, Kind, Terms, allocate
from ledger.core.records import HOOK_OFF, PERIOD_US, Dimensions
from ledger.core.scraped import ScrapedInputs, ScrapedPeriod

if TYPE_CHECKING:
    from ledger.core.settlement import IntervalInputs

GPU = 2_950_000_000
SILENCE = 15 * MINUTE
NOBODY = Dimensions(tenant="unattributed", session="scraped", model="m")


def watched(start_us: int, end_us: int, *, busy_us: int, started_us: int | None = None) -> list[ScrapedPeriod]:
    return [
        record(at, busy_us=busy_us, model="m", started_us=started_us, output_tokens=busy_us // 1_000_000)
        for at in range(start_us, end_us, PERIOD_US)
    ]


def test_worked_example() -> None:
    """20 min busy, 10 idle, 3 unobserved, 2 starting, 5 a third busy at 2.95; then 20 a third busy at 3.50."""
    records = [
        *watched(T0, T0 + 20 * MINUTE, busy_us=PERIOD_US),
        *watched(T0 + 20 * MINUTE, T0 + 30 * MINUTE, busy_us=0),
        *watched(T0 + 35 * MINUTE, T0 + HOUR, busy_us=5_000_000, started_us=T0 + 33 * MINUTE),
    ]
    said = ScrapedInputs(records=tuple(records))
    done = allocate(inputs([asset("gpu", (T0 - HOUR, GPU), (T0 + 40 * MINUTE, 3_500_000_000))]), said)
    cheap, dear = Fraction(GPU, 60), Fraction(3_500_000_000, 60)
    exact = {
        "unattributed/compute": 20 * cheap + Fraction(5, 3) * cheap + Fraction(20, 3) * dear,
        "idle": 10 * cheap + Fraction(10, 3) * cheap + Fraction(40, 3) * dear,
        "unobserved": 3 * cheap,
        "starting": 2 * cheap,
    }
    assert amounts(done) == {
        "unattributed/compute": 1_454_166_666,
        "idle": 1_433_333_333,
        "unobserved": 147_500_000,
        "starting": 98_333_333,
    }
    for name, nanos in amounts(done).items():
        assert abs(nanos - exact[name]) <= 4, name
    assert sum(amounts(done).values()) == sum(nanos for _, nanos in done.asset_credits) == 3_133_333_332
    assert amounts(done, other=True) == amounts(done)
    (cost,) = done.session_costs
    assert (cost.dims, cost.kind, cost.amount_nanos) == (NOBODY, Kind.COMPUTE, 1_454_166_666)
    assert done.scraped is not None
    pool, (used,) = done.scraped
    assert (pool.observed_us, pool.totals.step_us) == (55 * MINUTE, 1700 * 1_000_000)
    assert (used.dims, used.row.compute_us, used.row.tokens.output) == (NOBODY, 1700 * 1_000_000, 1700)
    assert done.pool is None
    states = {line.account: line.asset_us for line in done.lines if line.asset_us}
    assert states == {Account.UNOBSERVED: 3 * MINUTE, Account.STARTING: 2 * MINUTE}


def test_after_15_minutes_without_an_answer_the_gpu_is_vacant_and_before_the_first_one_it_was() -> None:
    records = watched(T0 + 10 * MINUTE, T0 + 20 * MINUTE, busy_us=0)
    done = allocate(inputs([asset("gpu", (T0 - HOUR, 60 * USD))]), ScrapedInputs(records=tuple(records)))
    assert amounts(done) == {"vacant": 35 * USD, "idle": 10 * USD, "unobserved": 15 * USD}


def test_an_answer_before_the_hour_makes_the_gap_at_its_beginning_unobserved() -> None:
    said = ScrapedInputs(heard_us=T0 - 10 * MINUTE)
    done = allocate(inputs([asset("gpu", (T0 - HOUR, 60 * USD))]), said)
    assert amounts(done) == {"unobserved": 5 * USD, "vacant": 55 * USD}
    assert done.scraped is None


def test_what_a_hook_claims_is_the_hooks() -> None:
    half = T0 + 30 * MINUTE
    periods = stretch(T0, half, 100, {tenant("A"): (100, 0)})
    given_boot = boot(T0, 100, closed_us=None, last_end_us=half)
    said = ScrapedInputs(records=tuple(watched(T0, T0 + HOUR, busy_us=PERIOD_US)))
    done = allocate(inputs([asset("gpu", (T0 - HOUR, 60 * USD))], [given_boot], periods), said)
    # After the hook's crash its time is unobserved for 15 minutes, as ever; then what is seen from outside counts.
    assert amounts(done) == {"A/active": 30 * USD, "unobserved": 15 * USD, "unattributed/compute": 15 * USD}


def test_a_sleeping_engine_is_vacant_though_its_process_answers_and_another_process_is_not() -> None:
    half = T0 + 30 * MINUTE
    slept = boot(T0, 100, closed_us=half, reason="sleep")
    periods = stretch(T0, half, 100, {tenant("A"): (100, 0)})
    given_inputs = inputs([asset("gpu", (T0 - HOUR, 60 * USD))], [slept], periods)

    def said(started_us: int | None) -> dict[str, int]:
        records = tuple(watched(T0, T0 + HOUR, busy_us=0, started_us=started_us))
        return amounts(allocate(given_inputs, ScrapedInputs(hook_closed_us=half, records=records)))

    assert said(T0 - HOUR) == {"A/active": 30 * USD, "vacant": 30 * USD}
    assert said(half + MINUTE) == {"A/active": 30 * USD, "idle": 30 * USD}
    assert said(None) == {"A/active": 30 * USD, "vacant": 15 * USD, "idle": 15 * USD}


def test_a_hook_that_switched_itself_off_is_followed_by_what_is_seen_from_outside() -> None:
    half = T0 + 30 * MINUTE
    off = boot(T0, 100, closed_us=half, reason=HOOK_OFF)
    said = ScrapedInputs(records=tuple(watched(T0, T0 + HOUR, busy_us=PERIOD_US)))
    done = allocate(
        inputs([asset("gpu", (T0 - HOUR, 60 * USD))], [off], stretch(T0, half, 100, {tenant("A"): (100, 0)})), said
    )
    assert amounts(done) == {"A/active": 30 * USD, "unobserved": 15 * USD, "unattributed/compute": 15 * USD}


def test_gpus_without_a_price_cost_nothing_and_show_as_time() -> None:
    unpriced = replace(asset("gpu", (T0 - HOUR, 0)), prices=())
    priced = asset("gpu", (T0 - HOUR, 0))
    nobody_knows = replace(priced, prices=(replace(priced.prices[0], nanos_per_hour=None),))
    said = ScrapedInputs(records=tuple(watched(T0, T0 + HOUR, busy_us=PERIOD_US)))
    assert amounts(allocate(inputs([unpriced]), said)) == {}
    (line,) = allocate(inputs([nobody_knows]), said).lines
    assert (line.account, line.amount_nanos, line.asset_us) == (Account.UNPRICED, 0, HOUR)


def test_models_that_take_turns_have_the_busy_time_of_their_own() -> None:
    records = [
        *watched(T0, T0 + 30 * MINUTE, busy_us=PERIOD_US),
        *[replace(one, model="n") for one in watched(T0 + 30 * MINUTE, T0 + HOUR, busy_us=5_000_000)],
    ]
    done = allocate(inputs([asset("gpu", (T0 - HOUR, 60 * USD))]), ScrapedInputs(records=tuple(records)))
    assert {cost.dims.model: cost.amount_nanos for cost in done.session_costs} == {"m": 30 * USD, "n": 10 * USD}


@pytest.mark.parametrize("share", [1, 333_333, 999_999])
def test_a_part_of_a_gpu_is_divided_like_a_whole_one(share: int) -> None:
    held = asset("gpu", (T0 - HOUR, 7), shares=[("e", share, T0 - HOUR, None)])
    said = ScrapedInputs(records=tuple(watched(T0, T0 + HOUR, busy_us=7_000_000)))
    done = allocate(inputs([held]), said)
    assert sum(amounts(done).values()) == sum(nanos for _, nanos in done.asset_credits)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[IntervalInputs, ScrapedInputs]:
    """A price that changes, a hook that may be there for a while, and records with holes of any length."""
    changes = sorted(draw(st.sets(st.integers(1, 239), max_size=2)))
    prices = [
        (T0 - HOUR, draw(st.integers(0, 10**10))),
        *((T0 + n * PERIOD_US, draw(st.integers(0, 10**10))) for n in changes),
    ]
    boots, periods = [], []
    if draw(st.booleans()):
        opened = T0 + draw(st.integers(0, 200)) * PERIOD_US
        until = min(T0 + HOUR, opened + draw(st.integers(1, 60)) * PERIOD_US)
        closed = draw(st.sampled_from([None, until]))
        boots = [boot(opened, 100, started_us=opened, closed_us=closed, last_end_us=until)]
        periods = stretch(opened, until, 100, {tenant("A"): (50, 0)})
    records: list[ScrapedPeriod] = []
    at_us = T0 + draw(st.integers(0, 60 * 60)) * 1_000_000
    while at_us < T0 + HOUR and len(records) < 40:
        end_us = min(at_us + draw(st.integers(1, 15)) * 1_000_000, at_us - at_us % PERIOD_US + PERIOD_US)
        started_us = draw(st.none() | st.integers(T0 - HOUR, end_us))
        records.append(
            record(at_us, length_us=end_us - at_us, busy_us=draw(st.integers(0, end_us - at_us)), started_us=started_us)
        )
        at_us = end_us + draw(st.sampled_from([0, 0, 0, 1, 30, 600, 1200])) * 1_000_000
    heard_us = draw(st.none() | st.integers(T0 - SILENCE + 1, T0))
    closed_us = draw(st.none() | st.integers(T0 - HOUR, T0 + HOUR - 1))
    made = inputs([asset("gpu", *prices)], boots, periods, terms=Terms(kv_share_ppm=draw(st.integers(0, 10**6))))
    return made, ScrapedInputs(heard_us=heard_us, hook_closed_us=closed_us, records=tuple(records))


@given(worlds())
def test_the_lines_sum_to_the_bill_and_sessions_to_their_lines_whatever_was_watched(
    world: tuple[IntervalInputs, ScrapedInputs],
) -> None:
    made, said = world
    done = allocate(made, said)
    bill = sum(nanos for _, nanos in done.asset_credits)
    for lines, costs in ((done.lines, done.session_costs), (done.other_lines, done.other_session_costs)):
        assert sum(line.amount_nanos for line in lines) == bill
        for line in lines:
            if line.account is Account.TENANT:
                own = [c for c in costs if (c.dims.tenant, c.kind) == (line.tenant, line.kind)]
                assert sum(c.amount_nanos for c in own) == line.amount_nanos
    assert sum(segment.bill_nanos for segment in done.segments) == bill
    assert all(one.end_us == other.start_us for one, other in zip(done.segments, done.segments[1:], strict=False))


@given(worlds())
def test_busy_time_is_that_of_the_records_where_no_hook_speaks(world: tuple[IntervalInputs, ScrapedInputs]) -> None:
    made, said = world
    alone = replace(made, boots=(), periods=())
    records = replace(said, hook_closed_us=None)
    done = allocate(alone, records)
    busy_us = sum(one.busy_us for one in said.records)
    watched_us = sum(one.end_us - one.start_us for one in said.records)
    pool = None if done.scraped is None else done.scraped[0]
    assert (0 if pool is None else pool.observed_us) == watched_us
    assert (0 if pool is None else pool.totals.step_us) == busy_us
    flat = replace(alone, assets=(asset("gpu", (T0 - HOUR, 3600 * USD)),))
    assert amounts(allocate(flat, records)).get("unattributed/compute", 0) == busy_us * USD // 1_000_000


def test_without_anything_watched_an_hour_is_settled_as_before() -> None:
    given_inputs = inputs(
        [asset("gpu", (T0 - HOUR, GPU))], [boot(T0, 10)], stretch(T0, T0 + HOUR, 10, {tenant("A"): (3, 0)})
    )
    assert allocate(given_inputs, None) == allocate(given_inputs, ScrapedInputs()) == allocate(given_inputs)
