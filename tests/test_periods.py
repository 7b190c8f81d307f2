from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.periods import (
    HOUR_US,
    QUARTER_US,
    Interval,
    Month,
    cut,
    format_time,
    from_datetime,
    month_interval,
    month_of,
    months_between,
    on_grid,
    parse_month,
    parse_time,
    parse_zone,
    period_end,
    period_start,
    settle_interval,
    settle_length_us,
    to_datetime,
)
from ledger.core.records import PERIOD_US
from ledger.errors import Refusal

moments = st.integers(from_datetime(datetime(2001, 1, 1, tzinfo=UTC)), from_datetime(datetime(2098, 1, 1, tzinfo=UTC)))
zones = st.sampled_from(
    ["UTC", "Europe/Budapest", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe",
     "America/Havana", "America/Asuncion", "Asia/Tokyo", "Pacific/Apia", "Africa/Casablanca", "America/Caracas"]
).map(ZoneInfo)  # fmt: skip


def us(text: str) -> int:
    found = parse_time(text)
    assert isinstance(found, int), found
    return found


@given(moments)
def test_every_moment_is_in_one_period_of_the_grid(at: int) -> None:
    start = period_start(at)
    assert on_grid(start)
    assert start <= at < start + PERIOD_US
    assert period_end(at) in (start, start + PERIOD_US)
    assert period_start(start) == period_end(start) == start


@given(moments, st.integers(0, 10 * PERIOD_US))
def test_cutting_tiles_the_interval_at_the_grid(start: int, length: int) -> None:
    pieces = list(cut(start, start + length))
    assert sum(piece.length_us for piece in pieces) == length
    assert all(0 < piece.length_us <= PERIOD_US for piece in pieces)
    assert all(on_grid(piece.end_us) for piece in pieces[:-1])
    assert all(one.end_us == two.start_us for one, two in pairwise(pieces))


@pytest.mark.parametrize(
    ("zone", "length"),
    [
        ("UTC", HOUR_US),
        ("Europe/Budapest", HOUR_US),
        ("America/New_York", HOUR_US),
        ("Asia/Kolkata", QUARTER_US),
        ("Asia/Kathmandu", QUARTER_US),
        ("Australia/Lord_Howe", QUARTER_US),
        ("America/St_Johns", QUARTER_US),
    ],
)
def test_settling_is_hourly_unless_the_offset_is_not_whole_hours(zone: str, length: int) -> None:
    assert settle_length_us(ZoneInfo(zone)) == length


@given(moments, zones)
def test_months_tile_the_line_and_are_made_of_whole_settle_intervals(at: int, zone: ZoneInfo) -> None:
    month = month_of(at, zone)
    interval = month_interval(month, zone)
    assert interval.start_us <= at < interval.end_us
    assert month_interval(month.previous(), zone).end_us == interval.start_us
    assert month.next().previous() == month
    length = settle_length_us(zone)
    assert interval.start_us % length == interval.end_us % length == 0
    assert settle_interval(at, length).start_us >= interval.start_us
    assert settle_interval(at, length).end_us <= interval.end_us
    assert month_of(interval.start_us, zone) == month
    assert month_of(interval.start_us - 1, zone) == month.previous()


def test_a_month_begins_at_midnight_of_its_own_zone() -> None:
    # In winter Budapest is an hour ahead; a month of UTC would be off by that.
    november = month_interval(Month(2026, 11), ZoneInfo("Europe/Budapest"))
    assert november == Interval(us("2026-10-31T23:00:00Z"), us("2026-11-30T23:00:00Z"))
    assert month_interval(Month(2026, 11), ZoneInfo("Asia/Tokyo")).start_us == us("2026-10-31T15:00:00Z")


def test_the_month_in_which_clocks_go_forward_is_an_hour_short() -> None:
    march = month_interval(Month(2026, 3), ZoneInfo("Europe/Budapest"))
    assert march.length_us == (31 * 24 - 1) * HOUR_US
    assert march == Interval(us("2026-02-28T23:00:00Z"), us("2026-03-31T22:00:00Z"))


def test_the_month_in_which_clocks_go_back_is_an_hour_long() -> None:
    october = month_interval(Month(2026, 10), ZoneInfo("Europe/Budapest"))
    assert october.length_us == (31 * 24 + 1) * HOUR_US
    assert month_interval(Month(2026, 11), ZoneInfo("America/New_York")).length_us == (30 * 24 + 1) * HOUR_US


def test_clocks_that_change_at_a_months_midnight_leave_no_hole() -> None:
    # Asuncion went forward at midnight of 2017-10-01: that midnight does not exist, the month begins with the jump.
    asuncion = ZoneInfo("America/Asuncion")
    assert month_interval(Month(2017, 10), asuncion).start_us == us("2017-10-01T04:00:00Z")
    # Havana went back from 01:00 to 00:00 on 2015-11-01: the first of its two midnights begins the month.
    havana = ZoneInfo("America/Havana")
    assert month_interval(Month(2015, 11), havana).start_us == us("2015-11-01T04:00:00Z")
    assert month_of(us("2015-11-01T05:00:00Z"), havana) == Month(2015, 11)


def test_the_months_of_a_stretch_are_those_it_touches() -> None:
    zone = ZoneInfo("Europe/Budapest")
    # 23:30Z on the last of the month is already the first of the next in Budapest.
    found = list(months_between(us("2026-10-31T22:30:00Z"), us("2026-12-31T23:00:00Z"), zone))
    assert found == [Month(2026, 10), Month(2026, 11), Month(2026, 12)]
    assert list(months_between(5, 5, zone)) == []


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-11-03T00:00:00Z", "2026-11-03T00:00:00Z"),
        ("2026-11-03T09:00:00+09:00", "2026-11-03T00:00:00Z"),
        ("2026-11-03T00:00:00.000001Z", "2026-11-03T00:00:00.000001Z"),
        ("2026-11-02T19:30:00-04:30", "2026-11-03T00:00:00Z"),
    ],
)
def test_times_with_an_offset_are_converted_not_stripped(text: str, iso: str) -> None:
    assert format_time(us(text)) == iso


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-03T00:00:00", "time_naive"),
        ("2026-11-03", "time_naive"),
        ("yesterday", "time"),
        ("", "time"),
        ("1793664000", "time"),
        ("2026-13-03T00:00:00Z", "time"),
        ("0001-01-01T00:00:00Z", "time_range"),
        ("1970-01-01T00:00:00Z", "time_range"),
        ("9999-12-31T23:59:59Z", "time_range"),
    ],
)
def test_times_without_an_offset_or_sense_are_refused(text: str, reason: str) -> None:
    refusal = parse_time(text)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason


@given(moments, zones)
def test_a_time_survives_its_text_in_any_zone(at: int, zone: ZoneInfo) -> None:
    assert parse_time(format_time(at)) == at
    assert parse_time(format_time(at, zone)) == at
    assert to_datetime(at).utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", ["2026-1", "2026-00", "2026-13", "1999-12", "2026-11-03", "november", "٢٠٢٦-11"])
def test_a_month_is_a_year_and_a_month_within_reason(text: str) -> None:
    assert isinstance(parse_month(text), Refusal)


def test_month_and_zone_are_read_by_name() -> None:
    assert parse_month("2026-11") == Month(2026, 11)
    assert str(Month(2026, 1)) == "2026-01"
    assert parse_zone("Europe/Budapest") == ZoneInfo("Europe/Budapest")


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", "UTC+1"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    refusal = parse_zone(name)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "zone"
