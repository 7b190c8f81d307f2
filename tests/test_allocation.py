"""Golden cases of settlement: each is worked out by hand beside its assertion."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from settling import (
    BLOCK_SIZE,
    HOUR,
    MINUTE,
    T0,
    USD,
    amounts,
    asset,
    boot,
    inputs,
    period,
    stretch,
    tenant,
)

from ledger.core.allocation import (
    Account,
    AssetTerms,
    Basis,
    IntervalInputs,
    Kind,
    PeriodFacts,
    PriceSpan,
    Terms,
    allocate,
)
from ledger.core.money import rounded_text
from ledger.core.records import PERIOD_US, Dimensions, Tokens

A, B, C = tenant("A"), tenant("B"), tenant("C")
SYSTEM, NOBODY = tenant("system"), tenant("unattributed")
ALIVE = boot(T0 - HOUR, 1000, last_end_us=T0 + HOUR)
GPU = asset("gpu-0", (T0 - HOUR, 3 * USD + 600_000_000))  # 0.001 a second


def standing_first(
    periods: list[PeriodFacts], held: dict[Dimensions, tuple[int, int]], **more: object
) -> list[PeriodFacts]:
    first = periods[0]
    with_standing = period(
        first.seq,
        first.start_us,
        1000,
        held,
        end_us=first.end_us,
        standing=True,
        boot_id=first.boot_id,
        **more,  # type: ignore[arg-type]
    )
    return [with_standing, *periods[1:]]


def worked_example() -> IntervalInputs:
    """Two GPUs at 2.95, one 3.50 from 20 past; A holds 400, then 100; B has 200 cached, then holds 300 and has 100."""
    change = T0 + 20 * MINUTE
    before = {A: (400, 0)}
    periods = standing_first(stretch(T0, change, 1000, before, quiet={B: (0, 200)}), before, quiet={B: (0, 200)})
    periods += stretch(change, T0 + HOUR, 1000, {A: (100, 0), B: (300, 100)}, seq=len(periods) + 1)
    assets = [
        asset("gpu-0", (T0 - HOUR, 2_950_000_000)),
        asset("gpu-1", (T0 - HOUR, 2_950_000_000), (change, 3_500_000_000)),
    ]
    return inputs(assets, [ALIVE], periods)


def test_the_worked_example() -> None:
    found = allocate(worked_example())
    assert {key: rounded_text(nanos, places=6) for key, nanos in amounts(found).items()} == {
        "A/active": "1.216667",
        "B/active": "1.290000",
        "B/cached": "0.098800",
        "idle": "3.661200",
    }
    assert rounded_text(sum(amounts(found).values()), places=6) == "6.266667"
    assert amounts(found) == {
        "A/active": 1_216_666_666,
        "B/active": 1_290_000_000,
        "B/cached": 98_800_000,
        "idle": 3_661_200_000,
    }
    assert sum(amounts(found).values()) == 6_266_666_666
    assert found.asset_credits == (("gpu-0", 2_950_000_000), ("gpu-1", 3_316_666_666))
    assert found.findings == ()


def test_the_worked_example_over_the_whole_hour_at_once_closes_and_is_wrong() -> None:
    # One price for the hour that makes the same bill: what a settlement without segments would do.
    facts = worked_example()
    at_once = allocate(replace(facts, assets=(asset("gpu-0", (T0 - HOUR, 6_266_666_666)),)))
    wrong = amounts(at_once)
    assert sum(wrong.values()) == 6_266_666_666
    assert (wrong["A/active"], wrong["B/active"]) == (1_253_333_333, 1_253_333_333)
    assert wrong != amounts(allocate(facts))


def test_the_worked_example_on_the_full_basis_leaves_nothing_idle() -> None:
    found = allocate(worked_example())
    # 20 min of 5.90: 400 * 2.5 and 200 * 0.3 of 1060; 40 min of 6.45: 250, 750 and 30 of 1030.
    early, late = Fraction(1_966_666_666), Fraction(4_300_000_000)
    expected = {
        "A/active": early * 1000 / 1060 + late * 250 / 1030,
        "B/active": late * 750 / 1030,
        "B/cached": early * 60 / 1060 + late * 30 / 1030,
    }
    full = amounts(found, other=True)
    assert full.keys() == expected.keys()
    assert all(abs(full[key] - value) <= 2 for key, value in expected.items())
    assert sum(full.values()) == 6_266_666_666


def test_a_price_change_within_the_hour_is_a_segment_of_its_own() -> None:
    change = T0 + 45 * MINUTE
    gpu = asset("gpu-0", (T0, USD), (change, 4 * USD))
    found = allocate(inputs([gpu], [ALIVE], stretch(T0, T0 + HOUR, 1000, {A: (500, 0)})))
    assert [(s.start_us, s.end_us, s.bill_nanos) for s in found.segments] == [
        (T0, change, 750_000_000),
        (change, T0 + HOUR, USD),
    ]
    assert amounts(found) == {"A/active": 875_000_000, "idle": 875_000_000}


def test_an_engine_that_lives_ten_minutes_leaves_the_rest_vacant() -> None:
    start, end = T0 + 20 * MINUTE + 7, T0 + 30 * MINUTE + 7
    lived = boot(start, 1000, started_us=T0 + 19 * MINUTE, closed_us=end)
    found = allocate(inputs([GPU], [lived], stretch(start, end, 1000, {A: (1000, 0)})))
    assert amounts(found) == {
        "A/active": 600_000_000,
        "starting": 60_000_007,
        "vacant": 3_600_000_000 - 660_000_007,
    }
    by_account = {line.account: line.asset_us for line in found.lines}
    assert by_account[Account.STARTING] == MINUTE + 7
    assert by_account[Account.VACANT] == HOUR - 11 * MINUTE - 7
    assert by_account[Account.TENANT] is None


@pytest.mark.parametrize(("one", "two"), [(500_000, 500_000), (700_000, 300_000)])
def test_two_engines_on_one_gpu_with_different_boots_close_between_them(one: int, two: int) -> None:
    # f comes at 10:00:07 past, in the middle of a period of e, and crashes; e has the whole GPU until then.
    comes = T0 + 10 * MINUTE + 7_000_001
    gpu = asset(
        "gpu-0",
        (T0 - HOUR, 2_950_000_003),
        shares=[("e", 1_000_000, T0 - HOUR, comes), ("e", one, comes, None), ("f", two, comes, None)],
    )
    e = allocate(inputs([gpu], [ALIVE], stretch(T0, T0 + HOUR, 1000, {A: (333, 0)})))
    crash = T0 + 40 * MINUTE
    f_boot = boot(comes, 700, last_end_us=crash, boot_id="boot-f")
    f = allocate(inputs([gpu], [f_boot], stretch(comes, crash, 700, {B: (100, 0)}, boot_id="boot-f"), engine="f"))
    rest = allocate(inputs([gpu], engine=None))
    assert sum(nanos for a in (e, f, rest) for _, nanos in a.asset_credits) == 2_950_000_003
    assert e.findings == f.findings == rest.findings == ()
    alone = Fraction(2_950_000_003) * (comes - T0) / HOUR
    together = Fraction(2_950_000_003) * (T0 + HOUR - comes) / HOUR
    assert abs(amounts(e)["A/active"] - (alone + together * one / 1_000_000) * 333 / 1000) < 3
    f_bill = together * two / 1_000_000
    assert abs(sum(amounts(f).values()) - f_bill) < 2
    f_span = T0 + HOUR - comes
    assert abs(amounts(f)["unobserved"] - f_bill * 15 * MINUTE / f_span) < 3
    assert abs(amounts(f)["vacant"] - f_bill * 5 * MINUTE / f_span) < 3
    assert amounts(rest) == {}


def test_four_mig_quarters_are_one_gpu_hour_and_an_empty_slice_is_vacant() -> None:
    full = asset("gpu-0", (T0, 2_950_000_003), shares=[(f"e{i}", 250_000, T0, None) for i in range(4)])
    three = replace(full, shares=full.shares[:3])
    for gpu, slices, vacant in ((full, 4, {}), (three, 3, {"vacant": 737_500_001})):
        bills = []
        for i in range(slices):
            facts = inputs([gpu], [ALIVE], stretch(T0, T0 + HOUR, 1000, {A: (1000, 0)}), engine=f"e{i}")
            bills.append(amounts(allocate(facts)))
        rest = allocate(inputs([gpu], engine=None))
        assert all(set(bill) == {"A/active"} for bill in bills)
        found = amounts(rest)
        assert {key: abs(found[key] - value) <= 1 for key, value in vacant.items()} == dict.fromkeys(found, True)
        assert sum(bill["A/active"] for bill in bills) + sum(found.values()) == 2_950_000_003
        assert sum(line.asset_us or 0 for line in rest.lines) == HOUR // 4 * (4 - slices)


def test_a_crash_is_unobserved_for_fifteen_minutes_and_vacant_then() -> None:
    crash = T0 + 30 * MINUTE
    found = allocate(inputs([GPU], [boot(T0, 1000, last_end_us=crash)], stretch(T0, crash, 1000, {A: (500, 0)})))
    assert amounts(found) == {
        "A/active": 900_000_000,
        "idle": 900_000_000,
        "unobserved": 900_000_000,
        "vacant": 900_000_000,
    }


def test_a_crash_is_unobserved_until_the_next_boot() -> None:
    crash, again, opened = T0 + 30 * MINUTE, T0 + 33 * MINUTE, T0 + 35 * MINUTE
    boots = [
        boot(T0, 1000, last_end_us=crash),
        boot(opened, 1000, started_us=again, last_end_us=T0 + HOUR, boot_id="boot-b"),
    ]
    periods = stretch(T0, crash, 1000, {A: (1000, 0)})
    periods += stretch(opened, T0 + HOUR, 1000, {B: (1000, 0)}, boot_id="boot-b")
    found = allocate(inputs([GPU], boots, periods))
    assert amounts(found) == {
        "A/active": 1_800_000_000,
        "B/active": 1_500_000_000,
        "unobserved": 180_000_000,
        "starting": 120_000_000,
    }


def test_a_crash_before_the_hour_reaches_into_it() -> None:
    found = allocate(inputs([GPU], [boot(T0 - HOUR, 1000, last_end_us=T0 - 5 * MINUTE)]))
    assert amounts(found) == {"unobserved": 600_000_000, "vacant": 3_000_000_000}


def test_a_clean_close_is_vacant_at_once_and_a_hook_that_left_is_unobserved() -> None:
    close = T0 + 30 * MINUTE
    periods = stretch(T0, close, 1000, {A: (1000, 0)})
    for reason, expected in (
        ("shutdown", {"vacant": 1_800_000_000}),
        ("sleep", {"vacant": 1_800_000_000}),
        ("off", {"unobserved": 900_000_000, "vacant": 900_000_000}),
    ):
        found = allocate(inputs([GPU], [boot(T0, 1000, closed_us=close, reason=reason)], periods))
        assert amounts(found) == {"A/active": 1_800_000_000, **expected}


@pytest.mark.parametrize("standing", [False, True])
def test_a_pool_that_sleeps_and_wakes_is_vacant_between_and_its_cache_has_gone(standing: bool) -> None:
    sleeps, wakes = T0 + 20 * MINUTE, T0 + 40 * MINUTE
    first = boot(T0, 1000, closed_us=sleeps, reason="sleep")
    woken = replace(first.opens[0], at_us=wakes)
    facts = replace(first, opens=(*first.opens, woken), last_end_us=T0 + HOUR)
    periods = standing_first(
        stretch(T0, sleeps, 1000, {A: (100, 0)}, quiet={B: (0, 500)}), {A: (100, 0)}, quiet={B: (0, 500)}
    )
    woke = stretch(wakes, T0 + HOUR, 1000, {A: (100, 0)}, seq=len(periods) + 1)
    periods += standing_first(woke, {A: (100, 0)}) if standing else woke
    found = allocate(inputs([GPU], [facts], periods))
    assert amounts(found)["vacant"] == 1_200_000_000
    assert found.findings == ()
    by_dims = {usage.dims: usage.row for usage in found.usage}
    assert by_dims[B].cached_block_us == 500 * 20 * MINUTE
    assert by_dims[B].cached_blocks_end == 0


def test_an_empty_night_is_idle_while_the_engine_is_open_and_vacant_when_it_never_was() -> None:
    assert amounts(allocate(inputs([GPU], [ALIVE], stretch(T0, T0 + HOUR, 1000, {})))) == {"idle": 3_600_000_000}
    assert amounts(allocate(inputs([GPU]))) == {"vacant": 3_600_000_000}
    assert amounts(allocate(inputs([GPU], engine=None))) == {}
    lone = replace(GPU, shares=())
    assert amounts(allocate(inputs([lone], engine=None))) == {"vacant": 3_600_000_000}


def test_a_starting_engine_is_starting_until_silence_says_that_it_is_gone() -> None:
    found = allocate(inputs([GPU], [boot(None, 0, started_us=T0 + 10 * MINUTE)]))
    assert amounts(found) == {"starting": 900_000_000, "vacant": 2_700_000_000}
    slow = boot(T0 + 50 * MINUTE, 1000, started_us=T0, last_end_us=T0 + HOUR)
    found = allocate(inputs([GPU], [slow], stretch(T0 + 50 * MINUTE, T0 + HOUR, 1000, {A: (1000, 0)})))
    assert amounts(found) == {"A/active": 600_000_000, "starting": 3_000_000_000}


@pytest.mark.parametrize(
    ("cached_weight", "b_cached"), [(0, 0), (300, 3_600_000_000 * 500 * 3 // 25 // 1000), (2500, 1_800_000_000)]
)
def test_cached_is_charged_by_its_weight_from_nothing_to_as_much_as_active(cached_weight: int, b_cached: int) -> None:
    held = {A: (100, 0), B: (0, 500)}
    facts = inputs([GPU], [ALIVE], stretch(T0, T0 + HOUR, 1000, held), terms=Terms(cached_weight_milli=cached_weight))
    found = amounts(allocate(facts))
    assert found.get("B/cached", 0) == b_cached
    assert found == {
        "A/active": 360_000_000,
        **({"B/cached": b_cached} if b_cached else {}),
        "idle": 3_240_000_000 - b_cached,
    }
    full = amounts(allocate(facts), other=True)
    weight = 100 * 2500 + 500 * cached_weight
    assert abs(full["A/active"] - Fraction(3_600_000_000 * 100 * 2500, weight)) < 1


@pytest.mark.parametrize(
    ("kv_share", "expected"),
    [
        (1_000_000, {"A/active": 900_000_000, "idle": 2_700_000_000}),
        # 1.80 by blocks: a quarter to A; 1.80 by compute: A 60 %, B 20 % of the time, 20 % no step fills.
        (
            500_000,
            {"A/active": 450_000_000, "A/compute": 1_080_000_000, "B/compute": 360_000_000, "idle": 1_710_000_000},
        ),
        (0, {"A/compute": 2_160_000_000, "B/compute": 720_000_000, "idle": 720_000_000}),
    ],
)
@pytest.mark.parametrize("basis", list(Basis))
def test_the_kv_share_decides_how_much_goes_by_blocks(kv_share: int, expected: dict[str, int], basis: Basis) -> None:
    periods = stretch(T0, T0 + HOUR, 1000, {A: (250, 0), B: (0, 0)}, compute={A: 9_000_000, B: 3_000_000})
    found = allocate(inputs([GPU], [ALIVE], periods, terms=Terms(kv_share_ppm=kv_share, basis=basis)))
    capacity = amounts(found, other=basis is Basis.FULL)
    assert capacity == expected
    full = amounts(found, other=basis is Basis.CAPACITY)
    assert full.get("A/active", 0) == 3_600_000_000 * kv_share // 1_000_000
    assert full.get("B/compute", 0) == expected.get("B/compute", 0)
    assert sum(s.kv_nanos for s in found.segments) == 3_600_000_000 * kv_share // 1_000_000
    assert found.findings == ()


def test_steps_that_outlast_the_segment_divide_it_among_themselves() -> None:
    # A step counts where it ends, so the steps of a segment may sum to more than its time: 15 s of steps in 10 s.
    start = T0 + HOUR - 10_000_000
    only = period(1, start, 1000, {A: (1, 0), B: (1, 0)}, end_us=T0 + HOUR, compute={A: 9_000_000, B: 6_000_000})
    facts = inputs(
        [GPU], [boot(start, 1000, last_end_us=T0 + HOUR)], [only], start_us=start, terms=Terms(kv_share_ppm=0)
    )
    assert amounts(allocate(facts)) == {"A/compute": 6_000_000, "B/compute": 4_000_000}


def test_an_unpriced_asset_shows_its_time_and_never_a_price_of_nothing() -> None:
    unpriced = AssetTerms(
        asset_id="gpu-1",
        prices=(PriceSpan(valid_from_us=T0 + 30 * MINUTE, valid_to_us=None, nanos_per_hour=None),),
        shares=GPU.shares,
    )
    found = allocate(inputs([GPU, unpriced], [ALIVE], stretch(T0, T0 + HOUR, 1000, {A: (500, 0)})))
    assert amounts(found) == {"A/active": 1_800_000_000, "idle": 1_800_000_000, "unpriced": 0}
    (line,) = [line for line in found.lines if line.account is Account.UNPRICED]
    assert line.asset_us == HOUR // 2
    assert found.asset_credits == (("gpu-0", 3_600_000_000), ("gpu-1", 0))
    alone = allocate(inputs([replace(unpriced, shares=())], engine=None))
    assert [(line.account, line.asset_us) for line in alone.lines] == [(Account.UNPRICED, HOUR // 2)]


def test_facts_that_hold_more_than_there_is_are_posted_not_clamped() -> None:
    broken = [
        replace(facts, pool=replace(facts.pool, blocks=1000, active_block_us=1500 * PERIOD_US, free_block_us=0))
        for facts in stretch(T0, T0 + HOUR, 2000, {A: (1000, 0), B: (500, 0)})
        if facts.pool is not None
    ]
    found = allocate(inputs([GPU], [ALIVE], broken))
    assert amounts(found) == {"A/active": 3_600_000_000, "B/active": 1_800_000_000, "over_allocation": -1_800_000_000}
    assert [finding.split(":")[0] for finding in found.findings] == ["law1", "over_allocation"]
    assert "and 239 more" in found.findings[0]


def test_compute_above_the_steps_is_posted_not_clamped() -> None:
    broken = [
        replace(facts, pool=replace(facts.pool, step_us=PERIOD_US))
        for facts in stretch(T0, T0 + HOUR, 1000, {A: (0, 0)}, compute={A: 2 * PERIOD_US})
        if facts.pool is not None
    ]
    found = allocate(inputs([GPU], [ALIVE], broken, terms=Terms(kv_share_ppm=0)))
    assert amounts(found) == {"A/compute": 7_200_000_000, "over_allocation": -3_600_000_000}
    assert [finding.split(":")[0] for finding in found.findings] == ["law3", "over_allocation"]


def test_time_that_no_session_claims_is_unattributed_and_a_finding() -> None:
    periods = [
        replace(
            facts,
            pool=replace(
                facts.pool,
                active_block_us=facts.pool.active_block_us + 100 * PERIOD_US,
                free_block_us=facts.pool.free_block_us - 100 * PERIOD_US,
            ),
        )
        for facts in stretch(T0, T0 + HOUR, 1000, {A: (200, 0)})
        if facts.pool is not None
    ]
    found = allocate(inputs([GPU], [ALIVE], periods))
    assert amounts(found) == {"A/active": 720_000_000, "unattributed/active": 360_000_000, "idle": 2_520_000_000}
    assert [finding.split(":")[0] for finding in found.findings] == ["law2_active"]


def test_a_gap_is_unobserved_and_quiet_caches_are_unattributed_until_counts_stand_again() -> None:
    quiet = {B: (0, 300)}
    held = {A: (100, 0)}
    first = standing_first(stretch(T0, T0 + 20 * MINUTE, 1000, held, quiet=quiet), held, quiet=quiet)
    after_gap = stretch(T0 + 30 * MINUTE, T0 + 40 * MINUTE, 1000, held, quiet=quiet, seq=200)
    after_gap[0] = replace(after_gap[0], gap_before=True)
    again = standing_first(stretch(T0 + 40 * MINUTE, T0 + HOUR, 1000, held, quiet=quiet, seq=300), held, quiet=quiet)
    found = allocate(inputs([GPU], [ALIVE], [*first, *after_gap, *again]))
    observed = 50 * 60_000_000
    assert amounts(found) == {
        "A/active": observed // 10,
        # 40 of 50 minutes are B's; 300 blocks at 0.3 / 2.5.
        "B/cached": 40 * 60_000_000 * 300 * 12 // 100_000,
        "unattributed/cached": 10 * 60_000_000 * 300 * 12 // 100_000,
        "idle": observed - observed // 10 - observed * 36 // 1000,
        "unobserved": 600_000_000,
    }
    assert found.findings == ()
    usage = {u.dims: u.row.cached_block_us for u in found.usage}
    assert usage[B] == 300 * 40 * MINUTE
    assert usage[NOBODY] == 300 * 10 * MINUTE


def test_counts_that_stand_with_the_batch_after_a_gap_serve_that_batch_already() -> None:
    held = {A: (100, 0)}
    first = stretch(T0, T0 + 20 * MINUTE, 1000, held, quiet={B: (0, 300)})
    resumed = stretch(T0 + 30 * MINUTE, T0 + HOUR, 1000, held, quiet={B: (0, 300)}, seq=200)
    resumed = standing_first(resumed, held, quiet={B: (0, 300)})
    resumed[0] = replace(resumed[0], gap_before=True)
    found = allocate(inputs([GPU], [ALIVE], [*standing_first(first, held, quiet={B: (0, 300)}), *resumed]))
    assert found.findings == ()
    assert NOBODY not in {usage.dims for usage in found.usage}


def test_a_quiet_cache_is_booked_as_a_span_up_to_its_next_row() -> None:
    held = {A: (10, 0)}
    touch = T0 + 30 * MINUTE
    periods = standing_first(stretch(T0, touch, 1000, held, quiet={B: (0, 40)}), held, quiet={B: (0, 40)})
    # B comes back for one period, in which its cache shrinks to 15 halfway; and is quiet again.
    row = period(len(periods) + 1, touch, 1000, {A: (10, 0), B: (5, 0)})
    assert row.pool is not None
    cached = (40 + 15) * PERIOD_US // 2
    row = replace(
        row,
        pool=replace(row.pool, cached_block_us=cached, free_block_us=row.pool.free_block_us - cached),
        sessions=(row.sessions[0], replace(row.sessions[1], cached_block_us=cached, cached_blocks_end=15)),
    )
    after = stretch(touch + PERIOD_US, T0 + HOUR, 1000, held, quiet={B: (0, 15)}, seq=row.seq + 1)
    found = allocate(inputs([GPU], [ALIVE], [*periods, row, *after]))
    assert found.findings == ()
    (usage,) = [usage for usage in found.usage if usage.dims == B]
    assert usage.row.cached_block_us == 40 * 30 * MINUTE + cached + 15 * (30 * MINUTE - PERIOD_US)
    assert usage.row.cached_blocks_end == 15
    assert usage.cached_charged_block_us == usage.row.cached_block_us
    assert usage.weighted_milliunits == (5 * PERIOD_US * 2500 + usage.row.cached_block_us * 300) * BLOCK_SIZE // 10**6


def test_standing_counts_that_contradict_the_rows_are_a_finding() -> None:
    held = {A: (10, 0)}
    periods = standing_first(stretch(T0, T0 + HOUR, 1000, held, quiet={B: (0, 40)}), held, quiet={B: (0, 40)})
    periods[100] = replace(periods[100], standing=())
    codes = {finding.split(":")[0] for finding in allocate(inputs([GPU], [ALIVE], periods)).findings}
    assert codes == {"standing", "law2_cached"}


def test_an_interval_within_an_hour_follows_the_counts_from_the_hours_first_batch() -> None:
    held = {A: (10, 0)}
    periods = standing_first(stretch(T0, T0 + 30 * MINUTE, 1000, held, quiet={B: (0, 40)}), held, quiet={B: (0, 40)})
    quarter = inputs([GPU], [ALIVE], periods, start_us=T0 + 15 * MINUTE, end_us=T0 + 30 * MINUTE)
    found = allocate(quarter)
    assert amounts(found) == {"A/active": 9_000_000, "B/cached": 4_320_000, "idle": 886_680_000}
    assert found.findings == ()
    assert found.pool is not None
    assert found.pool.observed_us == 15 * MINUTE
    assert {u.dims: u.row.cached_block_us for u in found.usage} == {A: 0, B: 40 * 15 * MINUTE}


@pytest.mark.parametrize("other", [False, True])
def test_an_idle_engines_cache_is_idle_capacity(other: bool) -> None:
    half = T0 + 30 * MINUTE
    quiet = {B: (0, 500)}
    busy = standing_first(stretch(T0, half, 1000, {A: (100, 0)}, quiet=quiet), {A: (100, 0)}, quiet=quiet)
    night = stretch(half, T0 + HOUR, 1000, {SYSTEM: (50, 0)}, quiet=quiet | {A: (0, 0)}, seq=len(busy) + 1)
    found = allocate(inputs([GPU], [ALIVE], [*busy, *night]))
    capacity = {
        "A/active": 180_000_000,
        "B/cached": 108_000_000,
        # Only system's own warm-up is charged in the idle half.
        "system/active": 90_000_000,
        "idle": 3_222_000_000,
    }
    full = {"A/active": 1_125_000_000, "B/cached": 675_000_000, "idle": 1_800_000_000}
    assert amounts(found, other=other) == (full if other else capacity)
    (usage,) = [usage for usage in found.usage if usage.dims == B]
    assert usage.row.cached_block_us == 2 * usage.cached_charged_block_us == 500 * HOUR


def test_weighted_units_are_the_articles_figure_rounded_half_up_once() -> None:
    held = {A: (2, 0), B: (0, 3)}
    # 2.5 * 2 blocks * 16 slots and 0.3 * 3 * 16, for 7 µs of the hour: 560 and 100.8 millionths of a milli-unit ...
    short = period(1, T0, 1000, held, end_us=T0 + 7)
    facts = inputs([GPU], [boot(T0, 1000, closed_us=T0 + 7)], [short])
    assert [u.weighted_milliunits for u in allocate(facts).usage] == [1, 0]
    # ... and for 3600 s: 2500 * 32 * 3600 and 300 * 48 * 3600.
    hour = allocate(inputs([GPU], [ALIVE], stretch(T0, T0 + HOUR, 1000, held)))
    assert [u.weighted_milliunits for u in hour.usage] == [2500 * 2 * BLOCK_SIZE * 3600, 300 * 3 * BLOCK_SIZE * 3600]


def test_usage_sums_the_rows_and_the_pool_its_periods() -> None:
    periods = stretch(T0, T0 + MINUTE, 1000, {A: (2, 3)}, compute={A: 1_000_000})
    rows = [replace(p.sessions[0], tokens=Tokens(computed=5, output=2, rejected=1)) for p in periods]
    periods = [replace(p, sessions=(row,)) for p, row in zip(periods, rows, strict=True)]
    found = allocate(inputs([GPU], [ALIVE], periods))
    (usage,) = found.usage
    assert usage.row.tokens == Tokens(computed=20, output=8, rejected=4)
    assert (usage.row.compute_us, usage.row.holding.active_block_us) == (4_000_000, 2 * MINUTE)
    assert found.pool is not None
    totals = found.pool.totals
    assert (totals.active_block_us, totals.cached_block_us) == (2 * MINUTE, 3 * MINUTE)
    assert totals.active_block_us + totals.cached_block_us + totals.free_block_us == 1000 * MINUTE
    assert (totals.steps, totals.step_us, totals.active_blocks_end, totals.cached_blocks_end) == (4, 4_000_000, 2, 3)
    assert found.pool.observed_us == MINUTE


def test_a_pool_whose_opening_was_lost_is_known_by_its_periods() -> None:
    lost = replace(boot(T0, 1000, last_end_us=T0 + 30 * MINUTE), opens=())
    found = allocate(inputs([GPU], [lost], stretch(T0, T0 + 30 * MINUTE, 1000, {A: (1000, 0)})))
    assert amounts(found)["A/active"] == 1_800_000_000
    assert sum(amounts(found).values()) == 3_600_000_000


@pytest.mark.parametrize("into_the_period_us", [0, 7_000_001])
def test_the_periods_of_an_older_boot_count_where_they_came_first(into_the_period_us: int) -> None:
    # A rolling restart under one name: boot-b is up at 10 min, boot-a delivers until 12.
    up = T0 + 10 * MINUTE + into_the_period_us
    boots = [
        boot(T0, 1000, last_end_us=T0 + 12 * MINUTE),
        boot(up, 500, last_end_us=T0 + HOUR, boot_id="boot-b"),
    ]
    periods = stretch(T0, T0 + 12 * MINUTE, 1000, {A: (1000, 0)})
    periods += stretch(T0 + 12 * MINUTE, T0 + HOUR, 500, {B: (250, 0)}, boot_id="boot-b", seq=9)
    found = allocate(inputs([GPU], boots, periods))
    assert amounts(found) == {"A/active": 720_000_000, "B/active": 1_440_000_000, "idle": 1_440_000_000}
    assert found.findings == ()


def test_a_period_that_claims_time_of_another_is_not_counted() -> None:
    periods = stretch(T0, T0 + HOUR, 1000, {A: (500, 0)})
    rival = period(7, T0 + MINUTE + 5, 1000, {B: (500, 0)}, end_us=T0 + MINUTE + 9, boot_id="boot-b")
    found = allocate(inputs([GPU], [ALIVE], [*periods, rival]))
    assert amounts(found) == {"A/active": 1_800_000_000, "idle": 1_800_000_000}
    assert [finding.split(":")[0] for finding in found.findings] == ["overlap"]


def test_a_provisional_interval_is_a_shorter_one() -> None:
    whole = worked_example()
    until = T0 + 25 * MINUTE
    provisional = allocate(replace(whole, end_us=until))
    # 20 min of 2 * 2.95, and 5 min of 2.95 and of 3.50, each rounded down where its price began.
    gpu_0, gpu_1 = 2_950_000_000 * 25 // 60, 2_950_000_000 * 20 // 60 + 3_500_000_000 * 5 // 60
    assert provisional.asset_credits == (("gpu-0", gpu_0), ("gpu-1", gpu_1))
    assert sum(amounts(provisional).values()) == gpu_0 + gpu_1
    assert amounts(provisional)["B/active"] == 161_250_000
    rest = allocate(replace(whole, start_us=until))
    assert sum(amounts(provisional).values()) + sum(amounts(rest).values()) == 6_266_666_666


def test_session_costs_sum_to_their_tenants_lines() -> None:
    sessions = [tenant("A", f"s{i}") for i in range(7)]
    held = {dims: (i + 1, 3 * i) for i, dims in enumerate(sessions)}
    gpu = asset("gpu-0", (T0, 2_950_000_001), (T0 + 20 * MINUTE, 3_333_333_333))
    facts = inputs([gpu], [ALIVE], stretch(T0, T0 + HOUR, 997, held, compute=dict.fromkeys(sessions, 333_333)))
    found = allocate(replace(facts, boots=(boot(T0, 997, last_end_us=T0 + HOUR),), terms=Terms(kv_share_ppm=777_777)))
    for lines, costs in ((found.lines, found.session_costs), (found.other_lines, found.other_session_costs)):
        for kind in (Kind.ACTIVE, Kind.CACHED, Kind.COMPUTE):
            (line,) = [line for line in lines if line.kind is kind]
            of_kind = [cost.amount_nanos for cost in costs if cost.kind is kind]
            assert sum(of_kind) == line.amount_nanos
            assert len(of_kind) >= 6


def test_the_booked_basis_is_the_one_that_the_month_has() -> None:
    facts = worked_example()
    capacity = allocate(facts)
    full = allocate(replace(facts, terms=Terms(basis=Basis.FULL)))
    assert (full.lines, full.session_costs) == (capacity.other_lines, capacity.other_session_costs)
    assert (full.other_lines, full.other_session_costs) == (capacity.lines, capacity.session_costs)
