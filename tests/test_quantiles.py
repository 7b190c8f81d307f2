from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.quantiles import (
    ERROR_PPM,
    VALUE_MAX,
    bucket_bounds,
    bucket_index,
    bucket_middle,
    buckets_of,
    merge,
    quantile,
)

if TYPE_CHECKING:
    from fractions import Fraction

values = st.one_of(st.integers(0, 100), st.integers(0, 10**7), st.integers(0, VALUE_MAX))


@given(values)
def test_a_value_lies_in_its_bucket_and_near_its_middle(value: int) -> None:
    low, high = bucket_bounds(bucket_index(value))
    assert low <= value < high
    assert abs(bucket_middle(bucket_index(value)) - value) * 1_000_000 <= ERROR_PPM * value


def test_buckets_tile_the_line_without_a_hole() -> None:
    edge = 0
    for index in range(bucket_index(VALUE_MAX) + 1):
        low, high = bucket_bounds(index)
        assert low == edge < high
        assert bucket_index(low) == bucket_index(high - 1) == index
        edge = high
    assert edge == VALUE_MAX + 1
    assert bucket_index(VALUE_MAX) == 959


def test_small_values_are_exact() -> None:
    assert [bucket_middle(bucket_index(v)) for v in range(32)] == list(range(32))


@given(st.lists(values, min_size=1, max_size=60), st.fractions(0, 1))
def test_a_quantile_is_within_its_error_of_the_nearest_rank(found: list[int], q: Fraction) -> None:
    rank = max(1, -(-q.numerator * len(found) // q.denominator))
    true = sorted(found)[rank - 1]
    estimate = quantile(buckets_of(found), q)
    assert estimate is not None
    assert abs(estimate - true) * 1_000_000 <= ERROR_PPM * true


@given(st.lists(values, max_size=30), st.lists(values, max_size=30))
def test_merging_histograms_is_the_histogram_of_all_values(one: list[int], two: list[int]) -> None:
    assert merge(buckets_of(one), buckets_of(two)) == buckets_of(one + two) == merge(buckets_of(two), buckets_of(one))


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantile((), 0.5) is None
    assert quantile({}, 0.99) is None


def test_a_float_quantile_is_read_as_the_decimal_it_prints_as() -> None:
    assert quantile(dict.fromkeys(range(10), 10), 0.07) == 0
    assert quantile(buckets_of(range(1, 30)), 1.0) == 29


@pytest.mark.parametrize("value", [-1, VALUE_MAX + 1])
def test_values_outside_the_stores_integers_are_a_bug(value: int) -> None:
    with pytest.raises(AssertionError):
        bucket_index(value)
