"""The laws of settlement on random hours, against an oracle that books period by period in fractions."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settling import HOUR, T0, asset, boot, inputs, period, tenant
from settling_oracle import World, make_world, settle

from ledger.core.allocation import Account, Allocation, Basis, IntervalInputs, Line, SessionCost, Terms, allocate
from ledger.core.pricing import bill
from ledger.core.records import PERIOD_US


def line_map(lines: tuple[Line, ...]) -> dict[tuple[str, str, str], int]:
    return {
        (line.account.value, line.tenant, line.kind.value): line.amount_nanos for line in lines if line.amount_nanos
    }


def cost_map(costs: tuple[SessionCost, ...]) -> dict[tuple[object, str], int]:
    return {(cost.dims, cost.kind.value): cost.amount_nanos for cost in costs}


def by_basis(found: Allocation, basis: Basis, booked: Basis) -> tuple[tuple[Line, ...], tuple[SessionCost, ...]]:
    if basis is booked:
        return found.lines, found.session_costs
    return found.other_lines, found.other_session_costs


def check(world: World) -> None:
    found = allocate(world.facts)
    lines, costs, total = settle(world)
    assert sum(nanos for _, nanos in found.asset_credits) == total
    for basis in Basis:
        mine, my_costs = by_basis(found, basis, world.facts.terms.basis)
        assert sum(line.amount_nanos for line in mine) == total
        assert line_map(mine) == {key: nanos for key, nanos in lines[basis].items() if nanos}
        assert cost_map(my_costs) == {key: nanos for key, nanos in costs[basis].items() if nanos}
        for line in mine:
            if line.account is Account.TENANT:
                own = [c.amount_nanos for c in my_costs if (c.dims.tenant, c.kind) == (line.tenant, line.kind)]
                assert sum(own) == line.amount_nanos
    assert found.findings == ()
    check_usage(world, found)
    check_segments(world, found, total)


def check_usage(world: World, found: Allocation) -> None:
    """Law 2 over the interval, and every session's sums, quiet spans included."""
    expected: dict[object, list[int]] = {}
    for truth in world.truths:
        for dims, (active, cached, compute) in truth.use.items():
            sums = expected.setdefault(dims, [0, 0, 0, 0])
            for i, part in enumerate((active, cached, compute, cached if truth.charged else 0)):
                sums[i] += part
    mine = {
        u.dims: [u.row.holding.active_block_us, u.row.cached_block_us, u.row.compute_us, u.cached_charged_block_us]
        for u in found.usage
    }
    assert {dims: sums for dims, sums in mine.items() if any(sums)} == {
        dims: sums for dims, sums in expected.items() if any(sums)
    }
    if found.pool is not None:
        totals = found.pool.totals
        assert sum(sums[0] for sums in mine.values()) == totals.active_block_us
        assert sum(sums[1] for sums in mine.values()) == totals.cached_block_us
        assert sum(sums[2] for sums in mine.values()) == totals.step_us
        assert found.pool.observed_us == sum(truth.end - truth.start for truth in world.truths)


def check_segments(world: World, found: Allocation, total: int) -> None:
    assert sum(s.bill_nanos for s in found.segments) == total
    assert found.segments[0].start_us == world.facts.start_us
    assert found.segments[-1].end_us == world.facts.end_us
    assert all(a.end_us == b.start_us for a, b in pairwise(found.segments))


@pytest.mark.parametrize("seed", range(120))
def test_random_hours_equal_the_oracle_to_the_nano_unit(seed: int) -> None:
    check(make_world(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_hours_equal_the_oracle(block: int) -> None:
    for seed in range(1000 + block * 100, 1100 + block * 100):
        try:
            check(make_world(seed))
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: check(make_world({seed})) repeats it") from failure


@pytest.mark.parametrize("seed", range(30))
def test_the_engines_and_the_vacant_rest_of_an_asset_sum_to_its_bill(seed: int) -> None:
    facts = make_world(seed).facts
    for terms in facts.assets:
        engines = sorted({share.engine for share in terms.shares})
        total = 0
        for engine in [*engines, None]:
            own = facts if engine == "e" else replace(facts, boots=(), periods=())
            total += dict(allocate(replace(own, engine=engine, assets=(terms,))).asset_credits)[terms.asset_id]
        expected = 0
        for price in terms.prices:
            start = max(price.valid_from_us, facts.start_us)
            end = facts.end_us if price.valid_to_us is None else min(price.valid_to_us, facts.end_us)
            expected += bill(price, start, end) if start < end else 0
        assert total == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(1, 239), max_size=5))
def test_any_partition_of_time_sums_to_the_whole_bill_and_to_the_whole_usage(seed: int, cuts: list[int]) -> None:
    facts = make_world(seed).facts
    whole = allocate(facts)
    edges = sorted({T0, *(T0 + cut * PERIOD_US for cut in cuts), T0 + HOUR})
    parts = [allocate(replace(facts, start_us=a, end_us=b)) for a, b in pairwise(edges)]
    for asset_id, nanos in whole.asset_credits:
        assert sum(dict(part.asset_credits)[asset_id] for part in parts) == nanos
    for usage in whole.usage:
        own = [u for part in parts for u in part.usage if u.dims == usage.dims]
        assert sum(u.row.cached_block_us for u in own) == usage.row.cached_block_us
        assert sum(u.cached_charged_block_us for u in own) == usage.cached_charged_block_us
        assert sum(u.row.holding.active_block_us for u in own) == usage.row.holding.active_block_us
        assert abs(sum(u.weighted_milliunits for u in own) - usage.weighted_milliunits) <= len(parts)
    assert all(part.findings == () for part in parts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_law_five_holds_even_for_facts_that_break_every_other_law(seed: int, data: st.DataObject) -> None:
    facts = make_world(seed).facts
    periods = []
    wild = st.integers(0, 10**12)
    for facts_of_period in facts.periods:
        if facts_of_period.pool is not None and facts_of_period.seq % 7 == 0:
            pool = replace(
                facts_of_period.pool,
                active_block_us=data.draw(wild),
                cached_block_us=data.draw(wild),
                step_us=data.draw(wild),
            )
            periods.append(replace(facts_of_period, pool=pool, gap_before=data.draw(st.booleans())))
        else:
            periods.append(facts_of_period)
    broken: IntervalInputs = replace(facts, periods=tuple(periods))
    found = allocate(broken)
    total = sum(nanos for _, nanos in found.asset_credits)
    assert total == sum(nanos for _, nanos in allocate(facts).asset_credits)
    for lines, costs in ((found.lines, found.session_costs), (found.other_lines, found.other_session_costs)):
        assert sum(line.amount_nanos for line in lines) == total
        tenants = sum(line.amount_nanos for line in lines if line.account is Account.TENANT)
        assert sum(cost.amount_nanos for cost in costs) == tenants


@pytest.mark.parametrize("seed", range(10))
def test_settling_is_a_function_of_its_inputs_and_of_nothing_after_them(seed: int) -> None:
    facts = make_world(seed).facts
    until = T0 + HOUR // 2
    early = replace(
        facts,
        end_us=until,
        boots=tuple(b for b in facts.boots if b.boot.started_us < until),
        periods=tuple(p for p in facts.periods if p.end_us <= until),
    )
    assert allocate(early) == allocate(replace(facts, end_us=until))


def test_an_hour_of_a_hundred_sessions_settles_in_well_under_a_second_and_quiet_ones_cost_next_to_nothing() -> None:
    busy = {tenant(f"t{i % 7}", f"s{i}"): (i % 50 + 1, i % 3) for i in range(100)}

    def hour(quiet_sessions: int) -> IntervalInputs:
        quiet = {tenant("q", f"q{i}"): (0, 2) for i in range(quiet_sessions)}
        periods = [
            period(
                k + 1,
                T0 + k * PERIOD_US,
                100_000,
                busy,
                quiet=quiet,
                standing=k == 0,
                compute=dict.fromkeys(busy, 9_999),
            )
            for k in range(240)
        ]
        return inputs(
            [asset("gpu-0", (T0, 2_950_000_000))],
            [boot(T0, 100_000, last_end_us=T0 + HOUR)],
            periods,
            terms=Terms(kv_share_ppm=500_000),
        )

    def cpu_s(facts: IntervalInputs) -> float:
        began = time.process_time()
        allocate(facts)
        return time.process_time() - began

    few, many = hour(0), hour(5_000)
    plain = min(cpu_s(few) for _ in range(3))
    with_quiet = min(cpu_s(many) for _ in range(3))
    assert plain < 1
    # 5000 sessions in 240 periods would be 1.2 million rows, fifty times the 24 000 that there are.
    assert with_quiet < 5 * plain
