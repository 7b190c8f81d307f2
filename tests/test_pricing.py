from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from settling import HOUR, MINUTE, T0, USD, asset

from ledger.core.allocation import AssetTerms, PriceSpan
from ledger.core.pricing import (
    VACANT_PART,
    WHOLE_PPM,
    asset_segments,
    bill,
)

prices = st.integers(0, 10**13)
offsets = st.integers(0, 10 * HOUR)


@given(prices, st.lists(offsets, min_size=2, max_size=20))
def test_any_partition_of_time_sums_to_the_whole_bill(price: int, cuts: list[int]) -> None:
    span = PriceSpan(valid_from_us=T0, valid_to_us=None, nanos_per_hour=price)
    edges = sorted(T0 + cut for cut in cuts)
    parts = [bill(span, a, b) for a, b in pairwise(edges)]
    assert sum(parts) == bill(span, edges[0], edges[-1])
    assert abs(bill(span, edges[0], edges[-1]) - Fraction(price) * (edges[-1] - edges[0]) / HOUR) < 1


def test_a_full_hour_costs_its_price_exactly() -> None:
    span = PriceSpan(valid_from_us=T0 + 15_000_000, valid_to_us=None, nanos_per_hour=2_950_000_001)
    assert bill(span, T0 + 2 * HOUR, T0 + 3 * HOUR) == 2_950_000_001


shares_of_one_asset = st.lists(st.integers(0, 400_000), min_size=0, max_size=2).map(
    lambda parts: [(f"e{i}", part) for i, part in enumerate(parts)]
)


@given(prices, shares_of_one_asset, st.lists(offsets, min_size=2, max_size=8))
def test_engines_and_the_vacant_rest_close_whatever_each_of_them_is_cut_at(
    price: int, shares: list[tuple[str, int]], cuts: list[int]
) -> None:
    terms = asset("gpu-0", (T0, price), shares=[(name, part, T0, None) for name, part in shares])
    (segment,) = asset_segments(terms, T0, T0 + 10 * HOUR)
    edges = sorted({T0, *(T0 + cut for cut in cuts), T0 + 10 * HOUR})
    total = 0
    for i, engine in enumerate([name for name, _ in shares] + [VACANT_PART]):
        # Each settles apart, cut at other moments than its neighbours: every second edge is dropped in turn.
        own = [edge for j, edge in enumerate(edges) if j in (0, len(edges) - 1) or (j + i) % 2]
        parts = [segment.nanos(engine, a, b) for a, b in pairwise(own)]
        total += sum(parts)
        ppm = dict(shares).get(str(engine), 0) if engine else WHOLE_PPM - sum(p for _, p in shares)
        assert abs(sum(parts) - Fraction(price * 10 * ppm, WHOLE_PPM)) < 1
    assert total == price * 10


@given(st.integers(0, 10**10), shares_of_one_asset, offsets, st.integers(1, 20_000_000))
def test_a_part_of_any_interval_is_within_three_nanos_of_exact_and_never_below_minus_one(
    price: int, shares: list[tuple[str, int]], start: int, length: int
) -> None:
    terms = asset("gpu-0", (T0, price), shares=[(name, part, T0, None) for name, part in shares])
    (segment,) = asset_segments(terms, T0, T0 + 11 * HOUR)
    for name, ppm in shares:
        found = segment.nanos(name, T0 + start, T0 + start + length)
        assert abs(found - Fraction(price * length * ppm, HOUR * WHOLE_PPM)) < 3
        assert found >= -1


def test_four_quarters_are_one_gpu_hour() -> None:
    terms = asset("gpu-0", (T0, 2_950_000_003), shares=[(f"e{i}", 250_000, T0, None) for i in range(4)])
    (segment,) = asset_segments(terms, T0, T0 + HOUR)
    nanos = [segment.nanos(f"e{i}", T0, T0 + HOUR) for i in range(4)]
    assert sum(nanos) == 2_950_000_003
    assert max(nanos) - min(nanos) <= 1
    assert [segment.asset_us(f"e{i}", T0, T0 + HOUR) for i in range(4)] == [HOUR // 4] * 4
    assert segment.nanos(VACANT_PART, T0, T0 + HOUR) == segment.asset_us(VACANT_PART, T0, T0 + HOUR) == 0


def test_an_engine_with_two_instances_of_one_gpu_has_both() -> None:
    terms = asset("gpu-0", (T0, USD), shares=[("e", 250_000, T0, None), ("e", 125_000, T0, None)])
    (segment,) = asset_segments(terms, T0, T0 + HOUR)
    assert segment.nanos("e", T0, T0 + HOUR) == 375_000_000


def test_segments_are_cut_at_prices_and_shares() -> None:
    terms = asset(
        "gpu-0",
        (T0 - HOUR, USD),
        (T0 + 20 * MINUTE, 2 * USD),
        shares=[("e", 500_000, T0 - 30 * MINUTE, None), ("f", 500_000, T0 + 30 * MINUTE, T0 + 40 * MINUTE)],
    )
    found = asset_segments(terms, T0, T0 + HOUR)
    minutes = [tuple((t - T0) // MINUTE for t in (s.start_us, s.end_us)) for s in found]
    assert minutes == [(0, 20), (20, 30), (30, 40), (40, 60)]
    assert [s.shares for s in found] == [(("e", 500_000),)] * 2 + [(("e", 500_000), ("f", 500_000))] + [
        (("e", 500_000),)
    ]


def test_outside_every_price_there_is_no_bill() -> None:
    terms = AssetTerms(
        asset_id="gpu-0",
        prices=(PriceSpan(valid_from_us=T0, valid_to_us=T0 + MINUTE, nanos_per_hour=USD),),
        shares=(),
    )
    assert asset_segments(terms, T0 + MINUTE, T0 + HOUR) == ()
    assert [s.end_us for s in asset_segments(terms, T0 - HOUR, T0 + HOUR)] == [T0 + MINUTE]


def test_unpriced_time_costs_nothing_and_is_still_time() -> None:
    terms = AssetTerms(
        asset_id="gpu-0",
        prices=(PriceSpan(valid_from_us=T0, valid_to_us=None, nanos_per_hour=None),),
        shares=(),
    )
    (segment,) = asset_segments(terms, T0, T0 + HOUR)
    assert segment.nanos(VACANT_PART, T0, T0 + HOUR) == 0
    assert segment.asset_us(VACANT_PART, T0, T0 + HOUR) == HOUR
