from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.money import (
    NANOS_PER_UNIT,
    apportion,
    decimal_text,
    parse_currency,
    parse_nanos,
    round_half_up,
    rounded_text,
)
from ledger.errors import Refusal


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("2.95", 2_950_000_000),
        ("0.000000001", 1),
        (" 3.50 ", 3_500_000_000),
        ("1000000", 10**15),
        ("007.1000000000000", 7_100_000_000),
        ("0.1", 100_000_000),
    ],
)
def test_decimal_text_becomes_nanos_exactly(text: str, nanos: int) -> None:
    assert parse_nanos(text) == nanos


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "decimal"),
        ("NaN", "decimal"),
        ("nan", "decimal"),
        ("inf", "decimal"),
        ("-Infinity", "decimal"),
        ("1e3", "decimal"),
        ("1,000.00", "decimal"),
        ("$2.95", "decimal"),
        ("2.95 USD", "decimal"),
        ("+1", "decimal"),
        (".5", "decimal"),
        ("5.", "decimal"),
        ("1_000", "decimal"),
        ("٣.٤", "decimal"),
        ("0x10", "decimal"),
        ("True", "decimal"),
        ("-2.95", "decimal_negative"),
        ("-0", "decimal_negative"),
        ("0.0000000001", "decimal_digits"),
        ("2.9500000001", "decimal_digits"),
        ("1000000.000000001", "decimal_absurd"),
        ("9223372036854775794", "decimal_absurd"),
        ("1" * 5000, "decimal_length"),
    ],
)
def test_unusable_amounts_are_refused_with_value_and_way_out(text: str, reason: str) -> None:
    refusal = parse_nanos(text, what="price")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert text[:20] in refusal.detail
    assert refusal.detail.startswith("price ")
    assert ": " in refusal.detail
    assert len(refusal.detail) < 200


@given(st.integers(min_value=0, max_value=10**15))
def test_nanos_survive_a_round_trip_through_text(nanos: int) -> None:
    assert parse_nanos(decimal_text(nanos)) == nanos


@pytest.mark.parametrize(
    ("nanos", "exact", "rounded"),
    [
        (6_266_666_666, "6.266666666", "6.27"),
        (-500_000_000, "-0.50", "-0.50"),
        (-1, "-0.000000001", "0.00"),
        (0, "0.00", "0.00"),
        (5_000_000, "0.005", "0.01"),
        (1_234_567_890_000_000, "1234567.89", "1,234,567.89"),
        (999_999_999, "0.999999999", "1.00"),
    ],
)
def test_amounts_are_written_exactly_and_for_people_without_a_negative_zero(
    nanos: int, exact: str, rounded: str
) -> None:
    assert decimal_text(nanos) == exact
    assert rounded_text(nanos) == rounded


def test_people_get_as_many_places_as_they_ask_for() -> None:
    assert rounded_text(1_500_000_000, places=0) == "2"
    assert rounded_text(1_216_666_667, places=6) == "1.216667"


def test_only_active_currency_codes_in_capitals_are_taken() -> None:
    assert parse_currency("EUR") == "EUR"
    refusal = parse_currency("usd")
    assert isinstance(refusal, Refusal)
    assert "USD" in refusal.detail
    assert isinstance(parse_currency("UDS"), Refusal)
    assert isinstance(parse_currency("XAU"), Refusal)


@pytest.mark.parametrize(
    ("numerator", "denominator", "rounded"),
    [(1, 2, 1), (3, 2, 2), (-1, 2, 0), (-3, 2, -1), (1, 3, 0), (2, 3, 1), (4, 2, 2)],
)
def test_halves_are_rounded_up(numerator: int, denominator: int, rounded: int) -> None:
    assert round_half_up(numerator, denominator) == rounded


parts = st.lists(
    st.one_of(
        st.integers(min_value=0, max_value=10**12), st.fractions(min_value=0, max_value=10**6, max_denominator=997)
    ),
    min_size=1,
    max_size=12,
)


@given(total=st.integers(min_value=-(10**15), max_value=10**15), exact=parts)
def test_apportioned_parts_sum_to_the_total_and_are_within_a_unit_of_exact(
    total: int, exact: list[int | Fraction]
) -> None:
    whole = sum(map(Fraction, exact))
    if not whole:
        total = 0
    found = apportion(total, exact, range(len(exact)))
    assert sum(found) == total
    for part, amount in zip(exact, found, strict=True):
        value = Fraction(total) * Fraction(part) / whole if whole else Fraction(0)
        assert 0 <= amount - (value.numerator // value.denominator) <= 1
        assert abs(amount - value) < 1


@given(exact=parts)
def test_parts_that_sum_to_the_total_get_their_own_floors_and_the_largest_fractions_the_rest(
    exact: list[int | Fraction],
) -> None:
    whole = sum(map(Fraction, exact))
    total = whole.numerator // whole.denominator
    shortened = [Fraction(part) * total / whole if whole else Fraction(0) for part in exact]
    found = apportion(total, shortened, range(len(exact)))
    raised = {i for i, part in enumerate(shortened) if found[i] > part.numerator // part.denominator}
    fractions = [part - part.numerator // part.denominator for part in shortened]
    assert all(fractions[i] >= fractions[j] for i in raised for j in set(range(len(exact))) - raised)


def test_ties_go_to_the_smaller_keys() -> None:
    assert apportion(10, [1, 1, 1], ["c", "a", "b"]) == [3, 4, 3]
    assert apportion(-10, [1, 1, 1], ["c", "a", "b"]) == [-4, -3, -3]


def test_a_negative_part_may_stand_beside_positive_ones() -> None:
    assert apportion(100, [3, -1], [0, 1]) == [150, -50]
    assert apportion(100, [-3, 1], [0, 1]) == [150, -50]


def test_a_total_cannot_be_divided_over_nothing() -> None:
    assert apportion(0, [0, 0], "ab") == [0, 0]
    with pytest.raises(AssertionError):
        apportion(1, [0, 0], "ab")


def test_a_unit_is_a_thousand_million_nanos() -> None:
    assert parse_nanos("1") == NANOS_PER_UNIT == 10**9
