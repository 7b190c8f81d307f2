"""An engine known in two ways: what its hook reports against what it says when it is scraped.

Invariant: only stretches that both ways cover nearly whole are compared, and counts as rates, so that a scrape at the
edge is no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger.core.scraped import Watched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.core.scraped import ScrapedPeriod

COVERED_PPM: Final = 800_000
"""The part of the stretch that each way must cover."""


def watched(records: Sequence[ScrapedPeriod]) -> Watched:
    """The records of one engine, put together; a figure is absent where any record lacks it."""
    covered_us = sum(record.end_us - record.start_us for record in records)
    held = [
        None if record.kv_active_ppm is None else record.kv_active_ppm * (record.end_us - record.start_us)
        for record in records
    ]
    ran = _sum([record.running_us for record in records])
    share = _sum(held)
    return Watched(
        covered_us=covered_us,
        output_tokens=_sum([record.output_tokens for record in records]),
        prompt_tokens=_sum([record.prompt_tokens for record in records]),
        kv_active_ppm=None if share is None or not covered_us else share // covered_us,
        running_milli=None if ran is None or not covered_us else ran * 1000 // covered_us,
    )


def differences(hook: Watched, scraped: Watched, length_us: int) -> Mapping[str, float]:
    """(scraped - hook) / the larger of both, by figure; none where one of them covers too little of the stretch."""
    if min(hook.covered_us, scraped.covered_us) * 1_000_000 < length_us * COVERED_PPM:
        return {}
    found = {}
    for figure, ours, theirs in (
        ("output_tokens", _rate(hook.output_tokens, hook), _rate(scraped.output_tokens, scraped)),
        ("prompt_tokens", _rate(hook.prompt_tokens, hook), _rate(scraped.prompt_tokens, scraped)),
        ("kv_active", hook.kv_active_ppm, scraped.kv_active_ppm),
        ("running", hook.running_milli, scraped.running_milli),
    ):
        if ours is not None and theirs is not None:
            larger = max(ours, theirs)
            found[figure] = (theirs - ours) / larger if larger else 0.0
    return found


def _rate(count: int | None, of: Watched) -> float | None:
    return None if count is None else count / of.covered_us


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
