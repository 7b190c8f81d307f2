"""What an argument's text may be, for whichever command has it: a value, or a sentence that says what to write."""

from __future__ import annotations

import argparse
from typing import TypeVar

from ledger.core.periods import HOUR_US, MINUTE_US, SECOND_US, parse_time
from ledger.errors import Refusal
from ledger.limits import DAY_US, TEXT_CHARS_MAX

T = TypeVar("T")

_UNITS = {"s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US}


def span(text: str) -> int:
    """A length of time (``90s``, ``30m``, ``12h``, ``7d``), in microseconds; 0 is allowed."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal() or len(number) > 6:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no length of time; write 90s, 30m, 12h or 7d")
    return int(number) * _UNITS[unit]


def name(text: str) -> str:
    """An identifier: printable, not blank, not longer than the ledger keeps."""
    if not text.strip() or not text.isprintable() or len(text) > TEXT_CHARS_MAX:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no name; write 1 to {TEXT_CHARS_MAX} printable characters")
    return text


def instant(text: str) -> int:
    """An ISO 8601 time with its offset, in microseconds since 1970."""
    return taken(parse_time(text))


def taken(parsed: T | Refusal) -> T:
    """What was read, or the complaint of a parser that answers with a refusal."""
    if isinstance(parsed, Refusal):
        raise argparse.ArgumentTypeError(parsed.detail)
    return parsed
