"""Histograms of non-negative integers in fixed logarithmic buckets, so that any two of them can be added.

Invariant: the buckets are the same everywhere and for ever; merging is adding counts, in any order.

Values below 32 have a bucket each. Above, every power of two is cut into 16 buckets of equal width (the layout of
HdrHistogram), so a bucket is at most 1/16 of its lower bound wide, and its middle is off by at most 1/32 of any
value in it: :data:`ERROR_PPM`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

Buckets = tuple[tuple[int, int], ...]
"""Pairs ``(index, count)``, by index, none empty: how a histogram travels and is stored."""

ERROR_PPM = 31_250
"""The most that a quantile is off, in millionths of the true value (3.125 %); values below 32 are exact."""

VALUE_MAX = 2**63 - 1
"""A larger value does not fit the stores' integers."""

_STEPS_BITS = 4
_STEPS = 1 << _STEPS_BITS


def bucket_index(value: int) -> int:
    """Index of the bucket that holds ``value`` (0 … :data:`VALUE_MAX`); at most 959."""
    assert 0 <= value <= VALUE_MAX, value
    shift = value.bit_length() - _STEPS_BITS - 1
    if shift <= 0:
        return value
    return shift * _STEPS + (value >> shift)


def bucket_bounds(index: int) -> tuple[int, int]:
    """The values of a bucket, half-open: ``low <= value < high``."""
    assert index >= 0, index
    shift = max(index // _STEPS - 1, 0)
    low = (index - shift * _STEPS) << shift
    return low, low + (1 << shift)


def bucket_middle(index: int) -> int:
    """The value that stands for a bucket: within :data:`ERROR_PPM` of every value in it."""
    low, high = bucket_bounds(index)
    return (low + high - 1) // 2


def buckets_of(values: Iterable[int]) -> Buckets:
    """The histogram of ``values``."""
    counts: dict[int, int] = {}
    for value in values:
        index = bucket_index(value)
        counts[index] = counts.get(index, 0) + 1
    return tuple(sorted(counts.items()))


def merge(*histograms: Buckets) -> Buckets:
    """The sum of several histograms."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for index, count in histogram:
            counts[index] = counts.get(index, 0) + count
    return tuple(sorted((index, count) for index, count in counts.items() if count))


def quantile(counts: Buckets | Mapping[int, int], q: float | Fraction) -> int | None:
    """The nearest-rank ``q``-quantile (0 … 1), within :data:`ERROR_PPM` of the true one; None if empty.

    The rank is ``ceil(q * count)``, at least 1, and a float is read as the decimal that it prints as: 0.99 of a
    hundred values is the 99th.
    """
    exact = Fraction(str(q))
    assert 0 <= exact <= 1, q
    pairs = sorted(counts.items()) if isinstance(counts, Mapping) else counts
    total = sum(count for _, count in pairs)
    if total == 0:
        return None
    rank = max(1, -(-exact.numerator * total // exact.denominator))
    for index, count in pairs:
        rank -= count
        if rank <= 0:
            return bucket_middle(index)
    raise AssertionError(pairs)
