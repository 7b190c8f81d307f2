"""Money as integer nano-units of one currency, and the largest-remainder rule that keeps sums whole.

Invariant: text becomes nanos and nanos become text without losing a digit; no float is made on the way, and parts
made here sum to their total exactly.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from ledger.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

NANOS_PER_UNIT = 1_000_000_000
NANO_DIGITS = 9

PRICE_UNITS_PER_HOUR_MAX = 1_000_000
"""No asset costs a million an hour; a larger price is a slip of the decimal point. It also keeps a month of it,
summed over a thousand assets, within 63 bits."""

_TEXT_MAX = 40
_DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?")

# ISO 4217, list one (active codes), without the codes for metals, tests and no currency.
_CODES = """
AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF
CHE CHF CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF
GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD
LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP
PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP
TRY TTD TWD TZS UAH UGX USD USN UYI UYU UYW UZS VED VES VND VUV WST XAF XCD XCG XOF XPF XSU XUA YER ZAR ZMW ZWG
"""
CURRENCIES = frozenset(_CODES.split())


def parse_nanos(text: str, *, units_max: int = PRICE_UNITS_PER_HOUR_MAX, what: str = "amount") -> int | Refusal:
    """Nano-units of plain decimal text such as ``2.95``, exactly: from 0 to ``units_max``, at most nine decimals.

    NaN, infinities, signs, exponents, separators and digits beyond the ninth decimal (other than zeros) are refused.
    """
    given = text.strip()
    shown = repr(given[:_TEXT_MAX])
    if len(given) > _TEXT_MAX:
        return Refusal(
            reason="decimal_length", detail=f"{what} {shown}… is longer than {_TEXT_MAX} characters: round it"
        )
    match = _DECIMAL.fullmatch(given)
    if match is None:
        if given.startswith("-") and _DECIMAL.fullmatch(given[1:]):
            detail = f"{what} {shown} is negative, the least is 0: leave out the sign, or retire the asset instead"
            return Refusal(reason="decimal_negative", detail=detail)
        detail = f"{what} {shown} is not a plain decimal number: write digits and one point, for example 2.95"
        return Refusal(reason="decimal", detail=detail)
    decimals = (match[2] or "").rstrip("0")
    if len(decimals) > NANO_DIGITS:
        detail = f"{what} {shown} has {len(decimals)} decimals, the most is {NANO_DIGITS}: round it to a nano-unit"
        return Refusal(reason="decimal_digits", detail=detail)
    nanos = int(match[1]) * NANOS_PER_UNIT + int(decimals.ljust(NANO_DIGITS, "0"))
    if nanos > units_max * NANOS_PER_UNIT:
        detail = f"{what} {shown} is above {units_max}: check the decimal point and the unit"
        return Refusal(reason="decimal_absurd", detail=detail)
    return nanos


def parse_currency(text: str) -> str | Refusal:
    """An active ISO 4217 code, in capitals."""
    if text in CURRENCIES:
        return text
    hint = f": did you mean {text.upper()}?" if text.upper() in CURRENCIES else ": for example USD or EUR"
    return Refusal(reason="currency", detail=f"{text[:20]!r} is not a currency code of ISO 4217{hint}")


def decimal_text(nanos: int) -> str:
    """The exact amount as decimal text, with two decimals at least: ``6.266666667``, ``-0.50``; never ``-0.00``."""
    units, rest = divmod(abs(nanos), NANOS_PER_UNIT)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nanos < 0 else ''}{units}.{decimals}"


def rounded_text(nanos: int, places: int = 2) -> str:
    """The amount for people, rounded half away from zero to 0 … 9 ``places``, thousands apart: ``-1,234.57``."""
    assert 0 <= places <= NANO_DIGITS, places
    step = 10 ** (NANO_DIGITS - places)
    scaled = (abs(nanos) + step // 2) // step
    units, rest = divmod(scaled, 10**places)
    sign = "-" if nanos < 0 and scaled else ""
    return f"{sign}{units:,}.{rest:0{places}d}" if places else f"{sign}{units:,}"


def round_half_up(numerator: int, denominator: int) -> int:
    """The nearest integer of ``numerator / denominator``, a half going up (towards plus infinity)."""
    assert denominator > 0, denominator
    return (2 * numerator + denominator) // (2 * denominator)


def apportion(total: int, exact_parts: Sequence[int | Fraction], keys: Sequence[Any]) -> list[int]:
    """``total`` divided in proportion to ``exact_parts`` by largest remainder: integers that sum to it.

    Each part gets the floor of its exact value ``total * part / sum(parts)``; the units that remain go to the largest
    fractions, ties to the smaller key. So every part is within one unit of its exact value, and where the parts sum
    to the total already, the exact values are the parts themselves. A negative total works alike: floors go towards
    minus infinity and units are added. Parts may be negative as long as their sum is not zero. Parts that sum to zero
    can carry no total but 0.
    """
    numerators = _over_common_denominator(exact_parts)
    whole = sum(numerators)
    if whole == 0:
        assert total == 0, (total, exact_parts)
        return [0] * len(numerators)
    if whole < 0:
        numerators, whole = [-numerator for numerator in numerators], -whole
    floors: list[int] = []
    fractions: list[int] = []
    for numerator in numerators:
        floor, fraction = divmod(total * numerator, whole)
        floors.append(floor)
        fractions.append(fraction)
    remaining = total - sum(floors)
    if remaining:
        order = sorted(range(len(floors)), key=lambda i: (-fractions[i], keys[i]))
        for i in order[:remaining]:
            floors[i] += 1
    return floors


def _over_common_denominator(parts: Sequence[int | Fraction]) -> list[int]:
    denominator = math.lcm(*(part.denominator for part in parts))
    return [part.numerator * (denominator // part.denominator) for part in parts]
