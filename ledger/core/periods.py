"""The grid of 15-second periods, settle intervals, and months of a billing zone.

Invariant: a moment is an integer of microseconds since 1970-01-01 UTC, an interval is half-open, and the intervals
of one kind tile the line: every moment is in exactly one period, one settle interval and one month. A wall-clock
text without an offset is refused, never guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from ledger.core.records import PERIOD_US
from ledger.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
QUARTER_US = 15 * MINUTE_US

SILENCE_US = 15 * MINUTE_US
"""After so long without a batch an engine is taken to be gone."""

YEAR_MIN = 2000
YEAR_MAX = 2099
"""Times outside are refused: they are a unit mistaken (seconds, nanoseconds) more likely than a date."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MIN_US = (datetime(YEAR_MIN, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
TIME_MAX_US = (datetime(YEAR_MAX + 1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """Half-open ``[start_us, end_us)``."""

    start_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month; in which zone, its user says."""

    year: int
    month: int

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"

    def next(self) -> Month:
        return Month(self.year + self.month // 12, self.month % 12 + 1)

    def previous(self) -> Month:
        return Month(self.year - (self.month == 1), (self.month - 2) % 12 + 1)


# --- the grid


def period_start(at_us: int) -> int:
    """Start of the period that holds ``at_us``; ``at_us`` itself if it is on the grid."""
    return at_us - at_us % PERIOD_US


def period_end(at_us: int) -> int:
    """The first grid boundary at or after ``at_us``."""
    return at_us + -at_us % PERIOD_US


def on_grid(at_us: int) -> bool:
    return at_us % PERIOD_US == 0


def cut(start_us: int, end_us: int, length_us: int = PERIOD_US) -> Iterator[Interval]:
    """``[start_us, end_us)`` cut at the multiples of ``length_us``; the first and the last may be shorter."""
    while start_us < end_us:
        stop = min(end_us, start_us - start_us % length_us + length_us)
        yield Interval(start_us, stop)
        start_us = stop


# --- settle intervals


@lru_cache(maxsize=64)
def settle_length_us(zone: tzinfo) -> int:
    """An hour, or 15 minutes where the zone's offset is not whole hours at some month's start in 2000 … 2099.

    So months of the zone are always made of whole settle intervals, which lie on the UTC grid. The answer holds for
    the ledger's whole life: a zone that has half hours in some years only (America/Caracas) has 15 minutes throughout.
    """
    for year in range(YEAR_MIN, YEAR_MAX + 1):
        for month in range(1, 13):
            offset = datetime(year, month, 1, tzinfo=zone).utcoffset()
            assert offset is not None, zone
            if offset % timedelta(hours=1):
                assert offset % timedelta(minutes=15) == timedelta(0), (zone, offset)
                return QUARTER_US
    return HOUR_US


def settle_interval(at_us: int, length_us: int) -> Interval:
    """The settle interval that holds ``at_us``."""
    start = at_us - at_us % length_us
    return Interval(start, start + length_us)


# --- months


def month_interval(month: Month, zone: tzinfo) -> Interval:
    """The month in ``zone``, from its first instant to that of the next one.

    Where clocks are put forward over midnight of the first, the month begins with the jump; where they are put back
    over it, with the first of the two midnights.
    """
    return Interval(_first_instant_us(month, zone), _first_instant_us(month.next(), zone))


def month_of(at_us: int, zone: tzinfo) -> Month:
    """The month in ``zone`` that holds ``at_us``."""
    local = to_datetime(at_us).astimezone(zone)
    return Month(local.year, local.month)


def months_between(start_us: int, end_us: int, zone: tzinfo) -> Iterator[Month]:
    """The months of ``zone`` that ``[start_us, end_us)`` touches."""
    if start_us >= end_us:
        return
    month, last = month_of(start_us, zone), month_of(end_us - 1, zone)
    while month <= last:
        yield month
        month = month.next()


def month_after(month: str) -> str:
    """The month after ``month``, both ``YYYY-MM``."""
    year, number = (int(part) for part in month.split("-"))
    return str(Month(year, number).next())


def parse_month(text: str) -> Month | Refusal:
    """``YYYY-MM``."""
    match = _MONTH.fullmatch(text)
    if match is None:
        return Refusal(reason="month", detail=f"{text[:40]!r} is not a month: write YYYY-MM, for example 2026-11")
    month = Month(int(match[1]), int(match[2]))
    if not (YEAR_MIN <= month.year <= YEAR_MAX and 1 <= month.month <= 12):
        return Refusal(reason="month", detail=f"{text!r} is outside {YEAR_MIN}-01 … {YEAR_MAX}-12: give a month within")
    return month


def parse_zone(name: str) -> ZoneInfo | Refusal:
    """A zone of the IANA database by its name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # ZoneInfo raises all three: unknown, malformed, and a folder of the database.
        detail = f"{name[:60]!r} is not a time zone: give a name of the IANA database, for example Europe/Budapest"
        return Refusal(reason="zone", detail=detail)


# --- texts


def parse_time(text: str) -> int | Refusal:
    """Microseconds of an ISO 8601 time with an offset (``Z`` or ``+09:00``); one without is refused."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        detail = f"{text[:60]!r} is not a time: write it as 2026-11-03T00:00:00Z"
        return Refusal(reason="time", detail=detail)
    if moment.utcoffset() is None:
        detail = f"{text!r} has no offset, and its zone would be a guess: end it with Z or an offset such as +01:00"
        return Refusal(reason="time_naive", detail=detail)
    at_us = from_datetime(moment)
    if not TIME_MIN_US <= at_us < TIME_MAX_US:
        detail = f"{text!r} is outside the years {YEAR_MIN} … {YEAR_MAX}: check the date"
        return Refusal(reason="time_range", detail=detail)
    return at_us


def format_time(at_us: int, zone: tzinfo = UTC) -> str:
    """ISO 8601 with its offset (``Z`` for UTC), a fraction only where there is one; :func:`parse_time` reads it."""
    text = to_datetime(at_us).astimezone(zone).isoformat()
    return text.removesuffix("+00:00") + "Z" if zone is UTC else text


def from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime, exactly."""
    assert moment.utcoffset() is not None, moment
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(at_us: int) -> datetime:
    """The aware UTC datetime of ``at_us``, exactly."""
    return _EPOCH + timedelta(microseconds=at_us)


def _first_instant_us(month: Month, zone: tzinfo) -> int:
    # fold=0 reads a midnight that is skipped with the offset before the jump, which is the jump's own instant.
    return from_datetime(datetime(month.year, month.month, 1, tzinfo=zone))
